"""Making of the filters of full periods, in steps between which others read and write."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import orjson

from relay.core.errors import StoreBroken, StoreError
from relay.store.sqlite import id_filter, id_periods, known_ids
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit
from relay.store.sqlite.known_ids import KnownIds

STEP_ROWS = 500
STEP_PAUSE_S = 0.005
RETRY_S = 10.0

# A period is full for good once an event of a later one is committed.
_IS_FULL = "SELECT max(seq) >= ? FROM events"
# One row of JSON, because Python's lock changes hands at each row.
_IDS = f"""
SELECT json_group_array(json_array(source, id)) FROM (
    SELECT source, id FROM events
    WHERE seq >> {id_periods.BITS} = ? AND (source, id) > (?, ?)
    ORDER BY source, id LIMIT {STEP_ROWS}
)
"""
_START = ("", "")


class FilterBuilder:
    """Makes missing filters on request, oldest first, and retries until it succeeds."""

    def __init__(self, ids: KnownIds, writer: GroupCommit, reader: Connection, room: Room) -> None:
        self._ids = ids
        self._writer = writer
        self._reader = reader
        self._room = room
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Make missing filters, unless it is being done."""
        if self._ids.bare and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; the next start of the relay goes on."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._forget()
                while (period := next(iter(self._ids.bare), None)) is not None:
                    if not await self._build(period):
                        return
            except StoreBroken:
                # The heartbeat fails too, and ends the process.
                return
            except StoreError:
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _forget(self) -> None:
        await self._writer.run_exclusive(self._ids.forget)
        await self._writer.transact(known_ids.drop)

    async def _build(self, period: int) -> bool:
        """Make the filter of a period; False if that may still get ids."""
        if not await self._reader.read(lambda db: _is_full(db, period)):
            return False
        bits = bytearray(known_ids.FILTER_BYTES)
        last: Sequence[str] | None = _START
        while last is not None:
            last = await self._reader.read(partial(self._add, period=period, after=last, to=bits))
            await asyncio.sleep(STEP_PAUSE_S)
        self._room.require()
        await self._writer.transact(lambda db: self._ids.store(db, period, bytes(bits)))
        return True

    def _add(
        self, db: sqlite3.Connection, *, period: int, after: Sequence[str], to: bytearray
    ) -> Sequence[str] | None:
        """Add the next ids to a filter; return the last of them."""
        rows = orjson.loads(db.execute(_IDS, (period, *after)).fetchone()[0])
        id_filter.add(to, (self._ids.places(source, event_id) for source, event_id in rows))
        return rows[-1] if rows else None


def _is_full(db: sqlite3.Connection, period: int) -> bool:
    return bool(db.execute(_IS_FULL, (id_periods.first(period + 1),)).fetchone()[0])
