"""The time that a question is about, and the rows in it that are not in the audience by day."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from relay.store.audience import AudienceQuery
from relay.store.conditions import Condition, all_of
from relay.store.sqlite.audience_days import Day, Key, View, days_of
from relay.store.sqlite.audience_rollup import ROLLED_TO, VIEWS
from relay.store.sqlite.audience_sets import NUMBER_MAX, VIDEO_BITS
from relay.store.sqlite.audience_weeks import WEEK_MS
from relay.store.sqlite.driver import sqlite3

ROWS_MAX = 50_000
"""Rows outside of whole units from which on it is faster to count all rows in SQL."""

# SQLite takes each from the index, but both together from all of it.
_EXTENT = "SELECT (SELECT min(at) FROM audience), (SELECT max(at) FROM audience)"
_ROWS = f"SELECT count(*) FROM (SELECT 1 FROM audience AS a WHERE {{fits}} LIMIT {ROWS_MAX + 1})"
# Pairs of video and person, and the videos of events without an address.
_LISTS = f"""
SELECT json_group_array(json_array(source, step, json(pairs), json(anonymous))) FROM (
    SELECT a.source, a.step,
        json_group_array(ifnull(a.video, 0) << {VIDEO_BITS} | v.number)
            FILTER (WHERE v.number IS NOT NULL) AS pairs,
        json_group_array(ifnull(a.video, 0)) FILTER (WHERE v.number IS NULL) AS anonymous
    FROM audience AS a LEFT JOIN viewers AS v ON v.person = a.person
    WHERE {{fits}} GROUP BY a.source, a.step
)
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A time; the end is exclusive, and not before the start."""

    since_ms: int
    until_ms: int

    def whole(self, unit_ms: int) -> "Span":
        """Return the part that consists of whole units, which may be empty."""
        since_ms = -(-self.since_ms // unit_ms) * unit_ms
        if since_ms >= self.until_ms:
            return self.end()
        return Span(since_ms, max(since_ms, self.until_ms // unit_ms * unit_ms))

    def around(self, inner: "Span") -> tuple["Span", "Span"]:
        """Return what is left of it before and after a part of it."""
        return Span(self.since_ms, inner.since_ms), Span(inner.until_ms, self.until_ms)

    def end(self) -> "Span":
        """Return the empty part at its end."""
        return Span(self.until_ms, self.until_ms)

    def fits(self, column: str) -> Condition:
        return f"{column} >= ? AND {column} < ?", [self.since_ms, self.until_ms]


def span_of(db: sqlite3.Connection, question: AudienceQuery) -> Span | None:
    """Return the question's time, at most the weeks that have an audience; None without any."""
    first_ms, last_ms = db.execute(_EXTENT).fetchone()
    if first_ms is None:
        return None
    since_ms, until_ms = first_ms // WEEK_MS * WEEK_MS, (last_ms // WEEK_MS + 1) * WEEK_MS
    if question.since_ms is not None:
        since_ms = max(since_ms, question.since_ms)
    if question.until_ms is not None:
        until_ms = min(until_ms, question.until_ms)
    return Span(since_ms, until_ms) if since_ms < until_ms else None


def loose_days(
    db: sqlite3.Connection,
    question: AudienceQuery,
    edges: tuple[Span, Span],
    *,
    video: int | None = None,
) -> dict[Key, Day] | None:
    """Count the rows of both edges of a time, and all of it that no day has yet.

    None if they are too many. A person without a number gets one for this answer.
    """
    before, after = edges
    filters = ("a.source = ?", [question.source]), ("a.video = ?", [video])
    known: Condition = f"a.event <= {ROLLED_TO}", []
    later: Condition = f"a.event > {ROLLED_TO}", []
    places = [
        *((known, edge.fits("a.at")) for edge in edges if edge.since_ms < edge.until_ms),
        # The `+` keeps SQLite from the index of times: few rows are that new.
        (later, Span(before.since_ms, after.until_ms).fits("+a.at")),
    ]
    rows: list[list[Any]] = []
    for place in places:
        where, values = all_of(*place, *filters)
        if len(rows) + _count(db, where, values) > ROWS_MAX:
            return None
        rows += orjson.loads(db.execute(VIEWS.format(fits=where), values).fetchone()[0])
    return days_of(_numbered(rows))


def edge_days(
    db: sqlite3.Connection, question: AudienceQuery, edges: tuple[Span, Span]
) -> list[tuple[Key, Day]] | None:
    """Count the rows of both edges that a day has, without half hours; None if they are too many.

    SQLite makes lists of them, because a partial day can have many rows.
    """
    parts: list[tuple[Key, Day]] = []
    for edge in edges:
        known: Condition = f"a.event <= {ROLLED_TO}", []
        where, values = all_of(known, edge.fits("a.at"), ("a.source = ?", [question.source]))
        if edge.since_ms == edge.until_ms:
            continue
        if _count(db, where, values) > ROWS_MAX:
            return None
        (lists,) = db.execute(_LISTS.format(fits=where), values).fetchone()
        for source, step, pairs, anonymous in orjson.loads(lists):
            day = Day()
            day.add_pairs(pairs, anonymous)
            parts.append((Key(edge.since_ms, source, step), day))
    return parts


def _count(db: sqlite3.Connection, where: str, values: list[Any]) -> int:
    return int(db.execute(_ROWS.format(fits=where), values).fetchone()[0])


def _numbered(rows: Iterable[list[Any]]) -> Iterator[View]:
    numbers: dict[int, int] = {}
    for at_ms, source, step, video, known, person in rows:
        number = known
        if known is None and person is not None:
            number = numbers.setdefault(person, NUMBER_MAX - len(numbers))
        yield View(at_ms, source, step, video, number)
