"""The time that a question is about, and the rows in it that are not in the audience by day."""

from collections.abc import Iterable, Iterator

from relay.store.audience import AudienceQuery
from relay.store.audience.days import WEEK_MS, Day, Key, View, days_of
from relay.store.audience.sets import NUMBER_MAX
from relay.store.audience.span import Span
from relay.store.audience.tables import FunnelTables, Place, RawView

ROWS_MAX = 50_000
"""Rows outside of whole units from which on it is faster to count all rows in SQL."""


def span_of(tables: FunnelTables, question: AudienceQuery) -> Span | None:
    """Return the question's time, at most the weeks that have an audience; None without any."""
    extent = tables.extent()
    if extent is None:
        return None
    first_ms, last_ms = extent
    since_ms, until_ms = first_ms // WEEK_MS * WEEK_MS, (last_ms // WEEK_MS + 1) * WEEK_MS
    if question.since_ms is not None:
        since_ms = max(since_ms, question.since_ms)
    if question.until_ms is not None:
        until_ms = min(until_ms, question.until_ms)
    return Span(since_ms, until_ms) if since_ms < until_ms else None


def raw_days(
    tables: FunnelTables,
    question: AudienceQuery,
    edges: tuple[Span, Span],
    *,
    video: int | None = None,
) -> dict[Key, Day] | None:
    """Count the rows of both edges of a time, and all of it that no day has yet.

    None if they are too many. A person without a number gets one for this answer.
    """
    before, after = edges
    later = Place(Span(before.since_ms, after.until_ms), is_rolled_up=False)
    rows: list[RawView] = []
    for place in (*_rolled_up(edges), later):
        limit = ROWS_MAX + 1 - len(rows)
        if tables.count(place, question.source, video, limit=limit) >= limit:
            return None
        rows += tables.raw_views(place, question.source, video)
    return days_of(_numbered(rows))


def edge_days(
    tables: FunnelTables, question: AudienceQuery, edges: tuple[Span, Span]
) -> list[tuple[Key, Day]] | None:
    """Count the rows of both edges that a day has, without half hours; None if they are too many.

    SQL makes lists of them, because a partial day can have many rows.
    """
    parts: list[tuple[Key, Day]] = []
    for place in _rolled_up(edges):
        if tables.count(place, question.source, None, limit=ROWS_MAX + 1) > ROWS_MAX:
            return None
        for source, step, pairs, anonymous in tables.pairs(place, question.source):
            day = Day()
            day.add_pairs(pairs, anonymous)
            parts.append((Key(place.span.since_ms, source, step), day))
    return parts


def _rolled_up(edges: tuple[Span, Span]) -> list[Place]:
    return [Place(edge, is_rolled_up=True) for edge in edges if edge]


def _numbered(rows: Iterable[RawView]) -> Iterator[View]:
    numbers: dict[int, int] = {}
    for view, person in rows:
        if view.person is not None or person is None:
            yield view
        else:
            yield view._replace(person=numbers.setdefault(person, NUMBER_MAX - len(numbers)))
