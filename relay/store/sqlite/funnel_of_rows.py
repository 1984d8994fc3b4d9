"""The funnel's counts from every row of the audience: for any selection, but slow for many."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.audience import AudienceQuery
from relay.store.conditions import Condition, all_of
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.funnel_counts import Counts, Steps
from relay.store.sqlite.zones import day_of, offsets

_NUMBERS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_ALL = f"SELECT {_NUMBERS} FROM audience WHERE {{fits}} GROUP BY step"
# The `+` keeps SQLite from a walk by the column's index, which reads the table in a random order.
_GROUPED = f"SELECT {{column}}, {_NUMBERS} FROM audience WHERE {{fits}} GROUP BY +{{column}}, step"
_SPAN = "SELECT min(at), max(at) FROM audience WHERE {fits}"
_NEWEST = "SELECT max(at) FROM audience WHERE {fits}"


def count(db: sqlite3.Connection, question: AudienceQuery) -> Counts:
    """Count within the caller's snapshot."""
    fits = all_of(
        ("at >= ?", [question.since_ms]),
        ("at < ?", [question.until_ms]),
        ("source = ?", [question.source]),
        ("video = (SELECT number FROM videos WHERE id = ?)", [question.video]),
    )
    return Counts.of(_groups(db, question, fits), _all(db, fits))


def _groups(
    db: sqlite3.Connection, question: AudienceQuery, fits: Condition
) -> Mapping[Any, Steps]:
    match question.by:
        case "video" | "source":
            return _grouped(db, question.by, fits)
        case "hour":
            return _by_hour(db, question.zone, fits)
        case "day":
            return _by_day(db, question, fits)


def _all(db: sqlite3.Connection, fits: Condition) -> Steps:
    where, values = fits
    return _steps(db.execute(_ALL.format(fits=where), values).fetchall())


def _steps(rows: Sequence[Row]) -> Steps:
    return {step: (people, events, anonymous) for step, people, events, anonymous in rows}


def _grouped(db: sqlite3.Connection, column: str, fits: Condition) -> Mapping[Any, Steps]:
    where, values = fits
    rows: defaultdict[Any, list[Row]] = defaultdict(list)
    for key, *counts in db.execute(_GROUPED.format(column=column, fits=where), values):
        rows[key].append(tuple(counts))
    return {key: _steps(counts) for key, counts in rows.items()}


def _by_hour(db: sqlite3.Connection, zone: tzinfo, fits: Condition) -> Mapping[Any, Steps]:
    where, values = fits
    first_ms, last_ms = db.execute(_SPAN.format(fits=where), values).fetchone()
    if first_ms is None:
        return {}
    return _grouped(db, hour_of_day(first_ms, last_ms, zone), fits)


def _by_day(
    db: sqlite3.Connection, question: AudienceQuery, fits: Condition
) -> Mapping[Any, Steps]:
    """Go backwards day by day, which skips empty days, to one day beyond the limit."""
    groups: dict[str, Steps] = {}
    earlier = fits
    while len(groups) <= question.limit:
        where, values = earlier
        newest = db.execute(_NEWEST.format(fits=where), values).fetchone()[0]
        if newest is None:
            break
        day, start_ms = day_of(newest, question.zone)
        groups[day] = _all(db, all_of(earlier, ("at >= ?", [start_ms])))
        earlier = all_of(fits, ("at < ?", [start_ms]))
    return groups


def hour_of_day(first_ms: int, last_ms: int, zone: tzinfo) -> str:
    """Return an SQL expression for the hour of `at` by the zone's clocks, within two times.

    A function of Python would be called for each row, and hold up everything else.
    """
    spans = list(offsets(first_ms, last_ms, zone))
    shift = str(spans[-1][1])
    if len(spans) > 1:
        whens = " ".join(f"WHEN at < {until_ms} THEN {offset}" for until_ms, offset in spans[:-1])
        shift = f"CASE {whens} ELSE {shift} END"
    # The added day keeps the remainder positive in 1970.
    return f"((at + {shift} + {DAY_MS}) % {DAY_MS} / {HOUR_MS})"
