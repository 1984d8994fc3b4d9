"""Where a search looks: at all events, or only at those that an index lists."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.conditions import WITH_PREFIX, prefix_range, uncounted
from relay.store.postgres.driver import Database
from relay.store.postgres.operator_queries import DEAD, sinks_of, sources
from relay.store.postgres.text import storable
from relay.store.selection import Condition, Selection
from relay.store.tiers import OF_TIER

PENDING_MAX = 10_000
"""Pending deliveries above which they are not taken from their indexes, which are by time and have
to be sorted."""
PREFIXED_MAX = 1000
"""Events with a prefix above which they are not taken from the index of ids, which has to be
sorted."""

_OLDEST = """
SELECT count(*), min(event) FROM (
    SELECT {column} AS event FROM {table} WHERE {fits} AND {column} < %s
    ORDER BY {column} DESC LIMIT %s
) AS newest
"""
_PENDING = tuple(f"status = 'pending' AND {belongs}" for belongs in OF_TIER.values())


class Listed(NamedTuple):
    """Rows of one table that fit, with the numbers of their events in `column`."""

    table: str
    column: str
    fits: str
    values: tuple[Any, ...]

    def oldest(self, db: Database, below: int, size: int) -> int:
        """Return the oldest of the newest ones below a number; 0 if there are fewer."""
        sql = _OLDEST.format(table=self.table, column=self.column, fits=self.fits)
        count, oldest = db.execute(sql, (*self.values, below, size)).fetchall()[0]
        return int(oldest) if count == size else 0

    def count_to(self, db: Database, limit: int) -> int:
        """Count the rows up to a limit."""
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {self.table} WHERE {self.fits} LIMIT %s) AS few"
        return int(db.execute(sql, (*self.values, limit)).fetchall()[0][0])

    def within(self, seqs: range) -> Condition:
        sql = (
            f"SELECT {self.column} FROM {self.table}"
            f" WHERE {self.fits} AND {self.column} >= %s AND {self.column} < %s"
        )
        return sql, [*self.values, seqs.start, seqs.stop]


class Candidates(NamedTuple):
    """Events that may match; `lists` is None for all."""

    lists: tuple[Listed, ...] | None
    is_counted: bool = True
    """Whether a step has a number of candidates, found by an index, and not of events."""

    @classmethod
    def of(cls, db: Database, selection: Selection, digests: PersonDigests) -> Self:
        """Choose the list with the fewest events."""
        if selection.id is not None:
            event_id = storable(selection.id)
            return cls(tuple(_with_id(each, event_id) for each in _sources(db, selection)))
        if selection.id_prefix is not None:
            listed = tuple(_with_prefix(db, selection, selection.id_prefix))
            if sum(each.count_to(db, PREFIXED_MAX + 1) for each in listed) <= PREFIXED_MAX:
                return cls(listed)
        if (person := selection.person_number) is not None:
            # An index of people would cost a page per event when the audience is counted, and
            # these rows are so small that a search gets through them quickly.
            counted = Listed("relay.audience", "event", "person = %s", (person,))
            events = (uncounted(db, person, digests),)
            others = Listed("unnest(%b::bigint[]) AS u (event)", "event", "TRUE", events)
            return cls((counted, others), is_counted=False)
        if selection.status == "dead":
            return cls(tuple(_deliveries(db, selection.sink, DEAD)))
        if selection.status == "pending":
            listed = tuple(_deliveries(db, selection.sink, *_PENDING))
            if sum(each.count_to(db, PENDING_MAX + 1) for each in listed) <= PENDING_MAX:
                return cls(listed)
        return cls(None)

    def next_start(self, db: Database, below: int, size: int) -> int:
        """Return where a step of this size begins that ends below a number."""
        if self.lists is None or not self.is_counted:
            return below - size
        return max((each.oldest(db, below, size) for each in self.lists), default=0)

    def within(self, seqs: range) -> Condition:
        """Return the condition on `events e` to be one of them."""
        if self.lists is None:
            return "e.seq >= %s AND e.seq < %s", [seqs.start, seqs.stop]
        parts = [each.within(seqs) for each in self.lists]
        sql = " UNION ALL ".join(sql for sql, _ in parts)
        if not sql:
            return "FALSE", []
        return f"e.seq IN ({sql})", [value for _, values in parts for value in values]


def _with_id(source: str, event_id: str) -> Listed:
    return Listed("relay.events", "seq", "source = %s AND id = %s", (source, event_id))


def _with_prefix(db: Database, selection: Selection, prefix: str) -> Iterator[Listed]:
    for source in _sources(db, selection):
        values = (source, *prefix_range(prefix))
        yield Listed("relay.events", "seq", f"source = %s AND {WITH_PREFIX}", values)


def _sources(db: Database, selection: Selection) -> list[str]:
    return sources(db) if selection.source is None else [storable(selection.source)]


def _deliveries(db: Database, sink: str | None, *states: str) -> Iterator[Listed]:
    for state in states:
        for each in sinks_of(db, state) if sink is None else [storable(sink)]:
            yield Listed("relay.deliveries", "event", f"sink = %s AND {state}", (each,))
