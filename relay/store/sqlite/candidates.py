"""Where a search looks: at all events, or only at those that an index lists."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from relay.store.selection import Condition, Selection
from relay.store.sqlite.conditions import UNCOUNTED, WITH_PREFIX
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import IDS, IN_INDEX, IS_OPEN, WITH_ID

REPLAYED_MAX = 10_000
"""Deliveries of replays above which pending ones are not taken from their index, which is by time
and has to be sorted."""
PREFIXED_MAX = 1000
"""Events with a prefix above which they are not taken from the index of ids, which has to be
sorted."""

_OLDEST = """
SELECT count(*), min(event) FROM (
    SELECT {column} AS event FROM {table} WHERE {fits} AND {column} < ?
    ORDER BY {column} DESC LIMIT ?
)
"""
_REPLAYED = f"""
SELECT count(*) > {REPLAYED_MAX} FROM (
    SELECT 1 FROM deliveries WHERE status = 'pending' AND replay IS NOT NULL
    LIMIT {REPLAYED_MAX + 1}
)
"""
# Seeks from one sink to the next in the index.
_SINKS = """
WITH RECURSIVE known(name) AS (
    SELECT min(sink) FROM deliveries WHERE {belongs}
    UNION ALL
    SELECT (SELECT min(sink) FROM deliveries WHERE {belongs} AND sink > name) FROM known
    WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
"""
_PENDING = "status = 'pending' AND replay IS NULL", "status = 'pending' AND replay IS NOT NULL"
_DEAD = ("status = 'dead'",)


class Listed(NamedTuple):
    """Rows of one table that fit, with the numbers of their events in `column`."""

    table: str
    column: str
    fits: str
    values: tuple[Any, ...]

    def oldest(self, db: sqlite3.Connection, below: int, size: int) -> int:
        """Return the oldest of the newest ones below a number; 0 if there are fewer."""
        count, oldest = db.execute(
            _OLDEST.format(table=self.table, column=self.column, fits=self.fits),
            (*self.values, below, size),
        ).fetchone()
        return int(oldest) if count == size else 0

    def count_to(self, db: sqlite3.Connection, limit: int) -> int:
        """Count the rows up to a limit."""
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {self.table} WHERE {self.fits} LIMIT ?)"
        return int(db.execute(sql, (*self.values, limit)).fetchone()[0])

    def within(self, seqs: range) -> Condition:
        sql = (
            f"SELECT {self.column} FROM {self.table}"
            f" WHERE {self.fits} AND {self.column} >= ? AND {self.column} < ?"
        )
        return sql, [*self.values, seqs.start, seqs.stop]


class Candidates(NamedTuple):
    """Events that may match; `lists` is None for all."""

    lists: tuple[Listed, ...] | None
    is_counted: bool = True
    """Whether a step has a number of candidates, found by an index, and not of events."""

    @classmethod
    def of(cls, db: sqlite3.Connection, selection: Selection) -> Self:
        """Choose the list with the fewest events."""
        if (event_id := selection.id) is not None:
            return cls((Listed("events", "seq", f"seq IN ({WITH_ID})", (event_id, event_id)),))
        if (prefix := selection.id_prefix) is not None:
            values = prefix, prefix
            lists = (
                Listed(IDS, "i.seq", f"{IN_INDEX} AND i.{WITH_PREFIX}", values),
                Listed("events", "seq", f"{IS_OPEN} AND {WITH_PREFIX}", values),
            )
            if sum(each.count_to(db, PREFIXED_MAX + 1) for each in lists) <= PREFIXED_MAX:
                return cls(lists)
        if (person := selection.person_number) is not None:
            # An index of people would cost a page per event when the audience is counted, and
            # these rows are so small that a search gets through them quickly.
            counted = Listed("audience", "event", "person = ?", (person,))
            uncounted = Listed("events", "seq", UNCOUNTED, (person,))
            return cls((counted, uncounted), is_counted=False)
        if selection.status == "dead":
            return cls(tuple(_deliveries(db, selection.sink, *_DEAD)))
        if selection.status == "pending" and not db.execute(_REPLAYED).fetchone()[0]:
            return cls(tuple(_deliveries(db, selection.sink, *_PENDING)))
        return cls(None)

    def next_start(self, db: sqlite3.Connection, below: int, size: int) -> int:
        """Return where a step of this size begins that ends below a number."""
        if self.lists is None or not self.is_counted:
            return below - size
        return max((each.oldest(db, below, size) for each in self.lists), default=0)

    def within(self, seqs: range) -> Condition:
        """Return the condition on `events e` to be one of them."""
        if self.lists is None:
            return "e.seq >= ? AND e.seq < ?", [seqs.start, seqs.stop]
        parts = [each.within(seqs) for each in self.lists]
        sql = " UNION ALL ".join(sql for sql, _ in parts) or "SELECT 0 WHERE 0"
        return f"e.seq IN ({sql})", [value for _, values in parts for value in values]


def _deliveries(db: sqlite3.Connection, sink: str | None, *states: str) -> Iterator[Listed]:
    for state in states:
        sinks = [sink] if sink is not None else _sinks(db, state)
        for each in sinks:
            yield Listed("deliveries", "event", f"sink = ? AND {state}", (each,))


def _sinks(db: sqlite3.Connection, belongs: str) -> list[str]:
    return [name for (name,) in db.execute(_SINKS.format(belongs=belongs))]
