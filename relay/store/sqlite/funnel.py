"""Queries of the audience in SQL: people by step of the funnel."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time, tzinfo
from typing import Any, NamedTuple

import orjson

from relay.core.event import LEAD, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED
from relay.store.audience import AudienceQuery, Funnel, Group, Grouping, StepCount
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


class _Condition(NamedTuple):
    """An SQL expression on `audience` and its values."""

    sql: str = "1"
    values: tuple[object, ...] = ()

    def also(self, sql: str, value: object) -> "_Condition":
        """Add a condition unless its value is None."""
        if value is None:
            return self
        return _Condition(f"{self.sql} AND {sql}", (*self.values, value))


def ask(db: sqlite3.Connection, question: AudienceQuery) -> Funnel:
    """Count within one snapshot of the audience."""
    fits = (
        _Condition()
        .also("at >= ?", question.since_ms)
        .also("at < ?", question.until_ms)
        .also("source = ?", question.source)
        .also("video = (SELECT number FROM videos WHERE id = ?)", question.video)
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


def _all(db: sqlite3.Connection, fits: _Condition) -> list[StepCount]:
    return _reached(db.execute(_ALL.format(fits=fits.sql), fits.values))


def _reached(rows: Iterable[Row]) -> list[StepCount]:
    counts = {step: numbers for step, *numbers in rows}
    return [_step(step, *counts.get(step, (0, 0, 0))) for step in (*MILESTONES, LEAD)]


def _step(step: str, people: int, events: int, anonymous: int) -> StepCount:
    is_lead = step == LEAD
    return StepCount(
        kind=LEAD_CAPTURED if is_lead else VIDEO_WATCHED,
        milestone=None if is_lead else step,
        people=people,
        events=events,
        anonymous=anonymous,
    )


def _by_video(db: sqlite3.Connection, question: AudienceQuery, fits: _Condition) -> Groups:
    ranked = _most_first(db, "video", fits)
    numbers = orjson.dumps([number for number, _ in ranked[: question.limit]]).decode()
    videos = {number: names for number, *names in db.execute(_VIDEOS, (numbers,))}
    groups = []
    for number, steps in ranked[: question.limit]:
        video, title = videos.get(number, (None, None))
        groups.append(Group(video=video, title=title, day=None, source=None, steps=steps))
    return groups, len(ranked) - len(groups)


def _by_source(db: sqlite3.Connection, question: AudienceQuery, fits: _Condition) -> Groups:
    ranked = _most_first(db, "source", fits)
    groups = [
        Group(video=None, title=None, day=None, source=source, steps=steps)
        for source, steps in ranked[: question.limit]
    ]
    return groups, len(ranked) - len(groups)


def _most_first(
    db: sqlite3.Connection, column: str, fits: _Condition
) -> list[tuple[Any, Sequence[StepCount]]]:
    rows: defaultdict[Any, list[Row]] = defaultdict(list)
    for key, *counts in db.execute(_GROUPED.format(column=column, fits=fits.sql), fits.values):
        rows[key].append(tuple(counts))
    groups = [(key, _reached(counts)) for key, counts in rows.items()]
    return sorted(groups, key=lambda group: (-max(step.people for step in group[1]), str(group[0])))


def _by_day(db: sqlite3.Connection, question: AudienceQuery, fits: _Condition) -> Groups:
    """Go backwards day by day, which skips empty days."""
    groups: list[Group] = []
    earlier = fits
    while True:
        newest = db.execute(_NEWEST.format(fits=earlier.sql), earlier.values).fetchone()[0]
        if newest is None:
            return groups, 0
        if len(groups) == question.limit:
            return groups, 1
        day, start_ms = day_of(newest, question.zone)
        steps = _all(db, earlier.also("at >= ?", start_ms))
        groups.append(Group(video=None, title=None, day=day, source=None, steps=steps))
        earlier = fits.also("at < ?", start_ms)


def day_of(at_ms: int, zone: tzinfo) -> tuple[str, int]:
    """Return the day of a time in a zone, and the start of that day."""
    day = datetime.fromtimestamp(at_ms / 1000, zone).date()
    return day.isoformat(), round(datetime.combine(day, time.min, zone).timestamp() * 1000)


_BY: dict[Grouping, Callable[[sqlite3.Connection, AudienceQuery, _Condition], Groups]] = {
    "video": _by_video,
    "day": _by_day,
    "source": _by_source,
}
