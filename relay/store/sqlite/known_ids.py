"""The places in which an event's id may be known: the newest ids in memory, and indexed periods.

An indexed period has a filter, or is looked up for each id until it has. No filter has the ids that
an erasure puts in the place of others: they are looked up in all periods.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Self

import orjson

from relay.store.keyed_digests import key
from relay.store.rows import ERASED
from relay.store.sqlite import id_filter, id_periods
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_filter import IdFilters
from relay.store.sqlite.recent_ids import RecentIds

KEY = "ids"
"""Name of the filters' key among the store's."""

READ_BLOCKS = 16
"""Blocks read at a time: half a megabyte each in memory, and written to the rows together."""

COLUMN_BYTES = id_filter.column_bytes(id_periods.SIZE)

_STORED = "SELECT periods, digest, bits FROM id_filters WHERE block = ?"
_STORE = """
INSERT INTO id_filters VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    periods = excluded.periods, digest = excluded.digest, bits = excluded.bits
"""
_DROP_EARLY = "DELETE FROM id_filters WHERE block > ?1 OR (block = ?1 AND periods >= ?2)"
_DROP = f"""
DELETE FROM id_filters WHERE NOT EXISTS (
    SELECT 1 FROM events
    WHERE seq >= block << {id_periods.BLOCK_BITS} AND seq < block + 1 << {id_periods.BLOCK_BITS}
)
"""


class BlockFilters(NamedTuple):
    """The filters of a block: the bits of its periods that have one, and its column."""

    periods: int
    digest: bytes
    column: bytes

    def is_sound(self, key: bytes, block: int) -> bool:
        """Whether it is as it was made, for this block."""
        made = _digest(key, block, self.periods, self.column)
        return len(self.column) == COLUMN_BYTES and self.digest == made


class KnownIds:
    """The periods of a store; only the writer's thread changes them."""

    def __init__(self, key: bytes, current: int, indexed: Iterable[int]) -> None:
        self.key = key
        self.recent = RecentIds()
        self._current = current
        self._bare = self._unfiltered = tuple(indexed)
        blocks = set(map(id_filter.block_of, self._bare))
        self.filters = IdFilters.empty(id_periods.SIZE, len(blocks))

    @classmethod
    def of_store(cls, db: sqlite3.Connection, current: int) -> Self:
        """Read the filters of the indexed periods; drop those of others."""
        early = id_periods.of(id_periods.first_unindexed(db))
        db.execute(_DROP_EARLY, (id_filter.block_of(early), id_filter.bit_of(early)))
        indexed = id_periods.indexed(db)
        known = cls(key(db, KEY), current, indexed)
        # Before the first event: with a cold disk, a look into each period would take it seconds.
        blocks, filters = sorted(set(map(id_filter.block_of, indexed))), known.filters
        for start in range(0, len(blocks), READ_BLOCKS):
            filters = filters.with_blocks(
                (each, found.periods, found.column)
                for each in blocks[start : start + READ_BLOCKS]
                if (found := stored(db, each)) is not None and found.is_sound(known.key, each)
            )
        known.use(filters)
        return known

    def recall(self, db: sqlite3.Connection) -> None:
        """Read the ids that are in no index yet, before the first event."""
        self.recent.read(db, id_periods.first_unindexed(db))
        full = (period for period in self.recent.periods if period != self._current)
        self._bare = (*self._bare, *full)

    @property
    def bare(self) -> Sequence[int]:
        """The full periods without a filter, oldest first."""
        return self._bare

    def full(self, block: int) -> list[int]:
        """Return the full periods of a block, oldest first."""
        periods = sorted((*self._bare, *self.filters.periods()))
        return [period for period in periods if id_filter.block_of(period) == block]

    def enter(self, period: int) -> None:
        """Note the period of new events; the one before it is full."""
        if period != self._current:
            self._bare = (*self._bare, self._current)
            self._current = period

    def elsewhere(self, source: str, event_id: str) -> Sequence[int]:
        """Return the indexed periods that may have an id that is not among the recent ones."""
        if event_id.startswith(ERASED):
            return (*self.filters.periods(), *self._unfiltered)
        if not self.filters:
            return self._unfiltered
        found = self.filters.matching(id_filter.places(self.key, source, event_id))
        return (*found, *self._unfiltered) if self._unfiltered else found

    def use(self, filters: IdFilters) -> None:
        """Use filters of indexed periods.

        A transaction that fails afterwards does no harm: a full period gets no other ids.
        """
        covered = set(filters.periods())
        self._bare = tuple(period for period in self._bare if period not in covered)
        self._unfiltered = tuple(period for period in self._unfiltered if period not in covered)
        self.filters = filters
        for period in covered.intersection(self.recent.periods):
            self.recent.forget(period)

    def forget(self, db: sqlite3.Connection) -> None:
        """Forget the periods whose events are all removed; not for use within a transaction.

        Their events would be back after a rollback.
        """
        kept = set(id_periods.numbers(db))
        for period in set(self._bare) - kept:
            self.recent.forget(period)
        self._bare = tuple(period for period in self._bare if period in kept)
        self._unfiltered = tuple(period for period in self._unfiltered if period in kept)
        blocks = {id_filter.block_of(period) for period in kept}
        self.filters = self.filters.without(self.filters.blocks - blocks)


def stored(db: sqlite3.Connection, block: int) -> BlockFilters | None:
    """Return the stored filters of a block."""
    row = db.execute(_STORED, (block,)).fetchone()
    return None if row is None else BlockFilters(*row)


def store(db: sqlite3.Connection, key: bytes, block: int, periods: int, column: bytes) -> None:
    """Store the filters of some periods of a block."""
    db.execute(_STORE, (block, periods, _digest(key, block, periods, column), column))


def drop(db: sqlite3.Connection) -> None:
    """Remove the stored filters of blocks whose events are all removed."""
    db.execute(_DROP)


def as_json(periods: Sequence[int]) -> str:
    """Return periods for `id_periods.IN_PERIODS`."""
    return orjson.dumps(periods).decode()


def _digest(key: bytes, block: int, periods: int, column: bytes) -> bytes:
    person = block.to_bytes(8) + periods.to_bytes(8)
    return blake2b(column, digest_size=32, key=key, person=person).digest()
