"""Queries of the audience in SQL: people by step of the funnel."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time, tzinfo
from typing import Any

import orjson

from relay.core.event import LEAD, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED
from relay.store.audience import AudienceQuery, Funnel, Group, Grouping, StepCount
from relay.store.sqlite.conditions import Condition, all_of
from relay.store.sqlite.driver import Row, sqlite3

COUNTED_TO = "coalesce((SELECT value FROM state WHERE name = 'audience'), 0)"
"""The last counted event."""

_COUNTS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_ALL = f"SELECT {_COUNTS} FROM audience WHERE {{fits}} GROUP BY step"
_GROUPED = f"SELECT {{column}}, {_COUNTS} FROM audience WHERE {{fits}} GROUP BY {{column}}, step"
_NEWEST = "SELECT max(at) FROM audience WHERE {fits}"
_VIDEOS = "SELECT number, id, title FROM videos WHERE number IN (SELECT value FROM json_each(?))"
_UNCOUNTED = f"SELECT received_at FROM events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT 1"

Groups = tuple[list[Group], int]
"""The returned groups, and the number of groups beyond the limit."""


def ask(db: sqlite3.Connection, question: AudienceQuery) -> Funnel:
    """Count within one snapshot of the audience."""
    fits = all_of(
        ("at >= ?", [question.since_ms]),
        ("at < ?", [question.until_ms]),
        ("source = ?", [question.source]),
        ("video = (SELECT number FROM videos WHERE id = ?)", [question.video]),
    )
    db.execute("BEGIN")
    try:
        groups, left_out = _BY[question.by](db, question, fits)
        return Funnel(
            groups=groups,
            total=_all(db, fits),
            left_out=left_out,
            counted_until_ms=oldest_uncounted(db),
        )
    finally:
        db.execute("COMMIT")


def oldest_uncounted(db: sqlite3.Connection) -> int | None:
    """Return the receipt of the first uncounted event; None if all are counted."""
    row = db.execute(_UNCOUNTED).fetchone()
    return None if row is None else int(row[0])


def _all(db: sqlite3.Connection, fits: Condition) -> list[StepCount]:
    where, values = fits
    return _reached(db.execute(_ALL.format(fits=where), values))


def _reached(rows: Iterable[Row]) -> list[StepCount]:
    counts = {step: numbers for step, *numbers in rows}
    return [
        StepCount(
            LEAD_CAPTURED if step == LEAD else VIDEO_WATCHED,
            None if step == LEAD else step,
            *counts.get(step, (0, 0, 0)),
        )
        for step in (*MILESTONES, LEAD)
    ]


def _by_video(db: sqlite3.Connection, question: AudienceQuery, fits: Condition) -> Groups:
    ranked = _most_first(db, "video", fits)
    best = ranked[: question.limit]
    numbers = orjson.dumps([number for number, _ in best]).decode()
    videos = {number: names for number, *names in db.execute(_VIDEOS, (numbers,))}
    groups = [Group(steps, *videos.get(number, ())) for number, steps in best]
    return groups, len(ranked) - len(best)


def _by_source(db: sqlite3.Connection, question: AudienceQuery, fits: Condition) -> Groups:
    ranked = _most_first(db, "source", fits)
    groups = [Group(steps, source=source) for source, steps in ranked[: question.limit]]
    return groups, len(ranked) - len(groups)


def _most_first(
    db: sqlite3.Connection, column: str, fits: Condition
) -> list[tuple[Any, Sequence[StepCount]]]:
    where, values = fits
    rows: defaultdict[Any, list[Row]] = defaultdict(list)
    for key, *counts in db.execute(_GROUPED.format(column=column, fits=where), values):
        rows[key].append(tuple(counts))
    groups = [(key, _reached(counts)) for key, counts in rows.items()]
    return sorted(groups, key=lambda group: (-max(step.people for step in group[1]), str(group[0])))


def _by_day(db: sqlite3.Connection, question: AudienceQuery, fits: Condition) -> Groups:
    """Go backwards day by day, which skips empty days."""
    groups: list[Group] = []
    earlier = fits
    while True:
        where, values = earlier
        newest = db.execute(_NEWEST.format(fits=where), values).fetchone()[0]
        if newest is None:
            return groups, 0
        if len(groups) == question.limit:
            return groups, 1
        day, start_ms = day_of(newest, question.zone)
        groups.append(Group(_all(db, all_of(earlier, ("at >= ?", [start_ms]))), day=day))
        earlier = all_of(fits, ("at < ?", [start_ms]))


def day_of(at_ms: int, zone: tzinfo) -> tuple[str, int]:
    """Return the day of a time in a zone, and the start of that day."""
    day = datetime.fromtimestamp(at_ms / 1000, zone).date()
    return day.isoformat(), round(datetime.combine(day, time.min, zone).timestamp() * 1000)


_BY: dict[Grouping, Callable[[sqlite3.Connection, AudienceQuery, Condition], Groups]] = {
    "video": _by_video,
    "day": _by_day,
    "source": _by_source,
}
