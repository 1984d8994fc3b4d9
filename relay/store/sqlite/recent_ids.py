"""Ids of the newest events, which are in no index yet.

They are kept by their hashes, so that only the row of an event tells whether it has an id. Two ids
of one hash, and a number that a failure has left, cost a look at a row.
"""

from collections.abc import Sequence

from relay.store.rows import ERASED
from relay.store.sqlite import id_periods
from relay.store.sqlite.driver import sqlite3

_ROWS = "SELECT source, id, seq FROM events WHERE seq >= ? ORDER BY seq"


class RecentIds:
    """The numbers of the newest events, by period and by a hash of the id.

    Numbers of the same hash follow each other; those of events that are gone or were never
    committed may be among them.
    """

    def __init__(self) -> None:
        self._periods: dict[int, dict[int, int]] = {}
        self._uncommitted: list[tuple[dict[int, int], int]] = []

    @property
    def periods(self) -> Sequence[int]:
        """The periods that have events."""
        return tuple(self._periods)

    def read(self, db: sqlite3.Connection, first: int) -> None:
        """Add the stored events from a number on."""
        for source, event_id, seq in db.execute(_ROWS, (first,)):
            self.add(source, event_id, seq)
        self.commit()

    def add(self, source: str, event_id: str, seq: int) -> None:
        """Add an event of the current transaction."""
        ids = self._periods.setdefault(id_periods.of(seq), {})
        key = hash((source, event_id))
        while key in ids:
            key += 1
        ids[key] = seq
        self._uncommitted.append((ids, key))

    def candidates(self, source: str, event_id: str) -> list[int]:
        """Return the numbers of the events that may have an id."""
        found: list[int] = []
        if event_id.startswith(ERASED):
            for ids in self._periods.values():
                found += ids.values()
            return found
        key = hash((source, event_id))
        for ids in self._periods.values():
            place = key
            while place in ids:
                found.append(ids[place])
                place += 1
        return found

    def commit(self) -> None:
        """Note that the last transaction was committed."""
        self._uncommitted.clear()

    def roll_back(self) -> None:
        """Take out the ids of the last transaction, which failed."""
        # Backwards, because a gap would hide the numbers behind it.
        while self._uncommitted:
            ids, key = self._uncommitted.pop()
            del ids[key]

    def forget(self, period: int) -> None:
        """Take out a period, whose ids are found elsewhere."""
        self._periods.pop(period, None)
