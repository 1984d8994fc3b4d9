"""The funnel's counts from every row of the audience: for any selection, but slow for many."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from typing import Any

from msgspec.structs import replace

from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.audience import AudienceQuery
from relay.store.audience.counts import Counts, Steps
from relay.store.audience.reads import AudienceReads, Numbers, Rows
from relay.store.audience.zones import day_of, offsets


def count(tables: AudienceReads, question: AudienceQuery) -> Counts:
    """Count within the caller's snapshot."""
    rows = Rows(
        since_ms=question.since_ms,
        until_ms=question.until_ms,
        source=question.source,
        video=question.video,
    )
    return Counts.of(_groups(tables, question, rows), _steps(tables.steps(rows)))


def _groups(tables: AudienceReads, question: AudienceQuery, rows: Rows) -> Mapping[Any, Steps]:
    match question.by:
        case "video" | "source":
            return _grouped(tables, rows, question.by)
        case "hour":
            return _by_hour(tables, rows, question.zone)
        case "day":
            return _by_day(tables, question, rows)


def _steps(counts: Iterable[tuple[str, *Numbers]]) -> Steps:
    return {step: (people, events, anonymous) for step, people, events, anonymous in counts}


def _grouped(tables: AudienceReads, rows: Rows, group: str) -> Mapping[Any, Steps]:
    counts: defaultdict[Any, list[tuple[str, *Numbers]]] = defaultdict(list)
    for key, step, people, events, anonymous in tables.groups(rows, group):
        counts[key].append((step, people, events, anonymous))
    return {key: _steps(of_key) for key, of_key in counts.items()}


def _by_hour(tables: AudienceReads, rows: Rows, zone: tzinfo) -> Mapping[Any, Steps]:
    first_ms, last_ms = tables.first_ms(rows), tables.last_ms(rows)
    if first_ms is None or last_ms is None:
        return {}
    return _grouped(tables, rows, hour_of_day(first_ms, last_ms, zone))


def _by_day(tables: AudienceReads, question: AudienceQuery, rows: Rows) -> Mapping[Any, Steps]:
    """Go backwards day by day, which skips empty days, to one day beyond the limit."""
    groups: dict[str, Steps] = {}
    earlier = rows
    while len(groups) <= question.limit:
        newest = tables.last_ms(earlier)
        if newest is None:
            break
        day, start_ms = day_of(newest, question.zone)
        since_ms = start_ms if rows.since_ms is None else max(start_ms, rows.since_ms)
        groups[day] = _steps(tables.steps(replace(earlier, since_ms=since_ms)))
        earlier = replace(rows, until_ms=start_ms)
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
