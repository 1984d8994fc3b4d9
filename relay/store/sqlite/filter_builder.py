"""Indexes full periods, and provides their filters, in steps that leave others their turn."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import orjson

from relay.core.errors import StoreBroken, StoreError
from relay.store.sqlite import id_filter, id_indexing, id_periods, known_ids
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit
from relay.store.sqlite.known_ids import BlockFilters, KnownIds

STEP_ROWS = 250
STEP_PAUSE_S = 0.001
RETRY_S = 10.0

# A period is full for good once an event of a later one is committed.
_IS_FULL = "SELECT max(seq) >= ? FROM events"
# One row of JSON, because Python's lock changes hands at each row.
_IDS = f"""
SELECT json_group_array(json_array(source, id)) FROM (
    SELECT source, id FROM ids WHERE period = ? AND (source, id) > (?, ?)
    ORDER BY source, id LIMIT {STEP_ROWS}
)
"""
_START = ("", "")
_NOTHING = BlockFilters(0, b"", bytes(known_ids.COLUMN_BYTES))


class FilterBuilder:
    """Indexes full periods and provides missing filters on request, oldest first.

    It retries until it succeeds.
    """

    def __init__(self, ids: KnownIds, writer: GroupCommit, reader: Connection, room: Room) -> None:
        self._ids = ids
        self._writer = writer
        self._reader = reader
        self._room = room
        self._requested = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Provide missing filters, unless it is being done."""
        if not self._ids.bare:
            return
        self._requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; the next start of the relay goes on."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._requested:
            self._requested = False
            try:
                await self._forget()
                for block in sorted({id_filter.block_of(period) for period in self._ids.bare}):
                    await self._provide(block)
            except StoreBroken as error:
                self._writer.mark_broken(error)
                return
            except StoreError:
                self._requested = True
                await asyncio.sleep(RETRY_S)

    async def _forget(self) -> None:
        await self._writer.run_exclusive(self._ids.forget)
        await self._writer.transact(known_ids.drop)

    async def _provide(self, block: int) -> None:
        """Use the stored filters of a block, and make those that it lacks."""
        key = self._ids.key
        loaded = await self._reader.read(lambda db: known_ids.stored(db, block))
        stored = loaded
        if stored is None or not await asyncio.to_thread(stored.is_sound, key, block):
            stored = _NOTHING
        periods, column = stored.periods, bytearray(stored.column)
        # Also those in use: an erasure removes the stored ones.
        for period in self._ids.full(block):
            if not periods & id_filter.bit_of(period):
                if not await self._reader.read(partial(_is_full, period=period)):
                    break
                if period in self._ids.recent.periods:
                    self._room.require()
                    await id_indexing.write(period, self._writer, self._reader)
                await self._add_period(column, period)
                periods |= id_filter.bit_of(period)
        made = bytes(column)
        is_new = periods != stored.periods
        if is_new:
            self._room.require()
        add = self._ids.filters.with_blocks
        filters = await asyncio.to_thread(add, [(block, periods, made)])

        def use(db: sqlite3.Connection) -> None:
            if is_new and known_ids.stored(db, block) != loaded:
                # An erasure removed it meanwhile; storing this one would undo that.
                self._requested = True
                return
            if is_new:
                known_ids.store(db, key, block, periods, made)
            self._ids.use(filters)

        await self._writer.transact(use)

    async def _add_period(self, column: bytearray, period: int) -> None:
        last: Sequence[str] | None = _START
        while last is not None:
            add = partial(self._add, column=column, period=period, after=last)
            last = await self._reader.read(add)
            await asyncio.sleep(STEP_PAUSE_S)

    def _add(
        self, db: sqlite3.Connection, *, column: bytearray, period: int, after: Sequence[str]
    ) -> Sequence[str] | None:
        """Add the next ids to the filter of a period; return the last of them."""
        rows = orjson.loads(db.execute(_IDS, (period, *after)).fetchone()[0])
        ids = (id_filter.places(self._ids.key, source, event_id) for source, event_id in rows)
        id_filter.add(column, period, ids)
        return rows[-1] if rows else None


def _is_full(db: sqlite3.Connection, period: int) -> bool:
    return bool(db.execute(_IS_FULL, (id_periods.first(period + 1),)).fetchone()[0])
