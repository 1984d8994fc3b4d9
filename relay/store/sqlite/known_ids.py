"""The periods in which an event's id may be known, by a filter in memory for each.

The filter of a full period is stored, and has no bit of an id that an erasure has put into the
period: such ids are looked up in all periods. A period without a filter is looked up for each id.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Self

import orjson

from relay.store.sqlite import id_filter, id_periods, keys
from relay.store.sqlite.driver import sqlite3

KEY = "ids"
"""Name of the filters' key among the store's."""

FILTER_BYTES = id_filter.size_of(id_periods.SIZE)

_STORED = "SELECT period, digest, bits FROM id_filters ORDER BY period"
_STORE = """
INSERT INTO id_filters VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET digest = excluded.digest, bits = excluded.bits
"""
_DROP_UNFINISHED = "DELETE FROM id_filters WHERE period >= ?"
_DROP = f"""
DELETE FROM id_filters WHERE NOT EXISTS (
    SELECT 1 FROM events
    WHERE seq >= period << {id_periods.BITS} AND seq < period + 1 << {id_periods.BITS}
)
"""


class KnownIds:
    """The full periods of a store, for the writer's thread, which alone changes them."""

    def __init__(
        self, key: bytes, current: int, filters: Iterable[tuple[int, bytes]], bare: Iterable[int]
    ) -> None:
        """`bare` are the full periods without a filter."""
        self._key = key
        self._current = current
        self._filters = tuple(filters)
        self._bare = tuple(bare)

    @classmethod
    def of_store(cls, db: sqlite3.Connection, current: int) -> Self:
        """Read the filters of the periods before the current one."""
        key = keys.key(db, KEY)
        db.execute(_DROP_UNFINISHED, (current,))
        full = {period for period in id_periods.numbers(db) if period < current}
        filters = {
            period: bits
            for period, digest, bits in db.execute(_STORED)
            if period in full and is_sound(key, period, digest, bits)
        }
        return cls(key, current, filters.items(), sorted(full - filters.keys()))

    @property
    def bare(self) -> Sequence[int]:
        """The full periods without a filter, oldest first."""
        return self._bare

    @property
    def current(self) -> int:
        return self._current

    def enter(self, period: int) -> None:
        """Note the period of new events; the one before it is full."""
        if period != self._current:
            self._bare = (*self._bare, self._current)
            self._current = period

    def elsewhere(self, source: str, event_id: str) -> Sequence[int]:
        """Return the full periods that may have an id; for the current one there is the index."""
        if not self._filters:
            return self._bare
        if event_id.startswith(id_periods.ERASED):
            return (*(period for period, _ in self._filters), *self._bare)
        places = id_filter.probes(self._key, source, event_id, FILTER_BYTES)
        found = id_filter.matching(self._filters, places)
        return (*found, *self._bare) if self._bare else found

    def everywhere(self, source: str, event_id: str) -> str:
        """Return all periods that may have an id, as JSON."""
        return as_json((*self.elsewhere(source, event_id), self._current))

    def places(self, source: str, event_id: str) -> id_filter.Probes:
        """Return the places of an id in a filter."""
        return id_filter.probes(self._key, source, event_id, FILTER_BYTES)

    def store(self, db: sqlite3.Connection, period: int, bits: bytes) -> None:
        """Store and use the filter of a full period.

        A failed transaction leaves it in use, which is right: a full period gets no other ids.
        """
        db.execute(_STORE, (period, _digest(self._key, period, bits), bits))
        self._bare = tuple(each for each in self._bare if each != period)
        others = (each for each in self._filters if each[0] != period)
        self._filters = (*others, (period, bits))

    def forget(self, db: sqlite3.Connection) -> None:
        """Forget the periods whose events are all removed; not for use within a transaction.

        Their events would be back after a rollback.
        """
        kept = set(id_periods.numbers(db))
        self._bare = tuple(period for period in self._bare if period in kept)
        self._filters = tuple(each for each in self._filters if each[0] in kept)


def drop(db: sqlite3.Connection) -> None:
    """Remove the stored filters of periods whose events are all removed."""
    db.execute(_DROP)


def as_json(periods: Sequence[int]) -> str:
    """Return periods for `id_periods.IN_PERIODS`."""
    return orjson.dumps(periods).decode()


def is_sound(key: bytes, period: int, digest: bytes, bits: bytes) -> bool:
    """Whether a stored filter is as it was made, for this period."""
    return len(bits) == FILTER_BYTES and digest == _digest(key, period, bits)


def _digest(key: bytes, period: int, bits: bytes) -> bytes:
    return blake2b(bits, digest_size=32, key=key, person=period.to_bytes(8)).digest()
