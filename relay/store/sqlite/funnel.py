"""Queries of the audience in SQL: people by step of the funnel."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time, tzinfo
from typing import Any

import orjson

from relay.core.event import LEAD, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.audience import AudienceQuery, Funnel, Group, Grouping, StepCount
from relay.store.sqlite.conditions import COUNTED_TO, Condition, all_of
from relay.store.sqlite.driver import Row, sqlite3

_COUNTS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_ALL = f"SELECT {_COUNTS} FROM audience WHERE {{fits}} GROUP BY step"
# The `+` keeps SQLite from a walk by the column's index, which reads the table in a random order.
_GROUPED = f"SELECT {{column}}, {_COUNTS} FROM audience WHERE {{fits}} GROUP BY +{{column}}, step"
_SPAN = "SELECT min(at), max(at) FROM audience WHERE {fits}"
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
    groups = list(_grouped(db, column, fits).items())
    return sorted(groups, key=lambda group: (-max(step.people for step in group[1]), str(group[0])))


def _grouped(
    db: sqlite3.Connection, column: str, fits: Condition
) -> dict[Any, Sequence[StepCount]]:
    where, values = fits
    rows: defaultdict[Any, list[Row]] = defaultdict(list)
    for key, *counts in db.execute(_GROUPED.format(column=column, fits=where), values):
        rows[key].append(tuple(counts))
    return {key: _reached(counts) for key, counts in rows.items()}


def _by_hour(db: sqlite3.Connection, question: AudienceQuery, fits: Condition) -> Groups:
    where, values = fits
    first_ms, last_ms = db.execute(_SPAN.format(fits=where), values).fetchone()
    if first_ms is None:
        return [], 0
    by_hour = _grouped(db, hour_of_day(first_ms, last_ms, question.zone), fits)
    groups = [Group(by_hour.get(hour) or _reached(()), hour=hour) for hour in range(24)]
    return groups[: question.limit], max(0, 24 - question.limit)


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


def hour_of_day(first_ms: int, last_ms: int, zone: tzinfo) -> str:
    """Return an SQL expression for the hour of `at` by the zone's clocks, within two times.

    A function of Python would be called for each row, and hold up everything else.
    """
    spans = list(_offsets(first_ms, last_ms, zone))
    shift = str(spans[-1][1])
    if len(spans) > 1:
        whens = " ".join(f"WHEN at < {until_ms} THEN {offset}" for until_ms, offset in spans[:-1])
        shift = f"CASE {whens} ELSE {shift} END"
    # The added day keeps the remainder positive in 1970.
    return f"((at + {shift} + {DAY_MS}) % {DAY_MS} / {HOUR_MS})"


def _offsets(first_ms: int, last_ms: int, zone: tzinfo) -> Iterator[tuple[int, int]]:
    """Yield each offset from UTC with its end, exclusive, all in milliseconds."""
    at_ms, offset = first_ms, _offset_ms(first_ms, zone)
    while at_ms < last_ms:
        next_ms = min(at_ms + DAY_MS, last_ms)
        if _offset_ms(next_ms, zone) != offset:
            change_ms = _change_ms(at_ms, next_ms, zone)
            yield change_ms, offset
            next_ms, offset = change_ms, _offset_ms(change_ms, zone)
        at_ms = next_ms
    yield last_ms + 1, offset


def _change_ms(before_ms: int, after_ms: int, zone: tzinfo) -> int:
    """Return the first millisecond whose offset is not that of `before_ms`."""
    offset = _offset_ms(before_ms, zone)
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if _offset_ms(middle_ms, zone) == offset:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return after_ms


def _offset_ms(at_ms: int, zone: tzinfo) -> int:
    offset = datetime.fromtimestamp(at_ms / 1000, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)


_BY: dict[Grouping, Callable[[sqlite3.Connection, AudienceQuery, Condition], Groups]] = {
    "video": _by_video,
    "day": _by_day,
    "hour": _by_hour,
    "source": _by_source,
}
