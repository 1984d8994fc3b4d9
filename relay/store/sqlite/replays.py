"""Replays in SQLite: their events with bodies, and cancellations that leases in memory heed."""

from collections.abc import Iterable, Sequence

import orjson

from relay.core.errors import StoreError
from relay.core.event import Event
from relay.store.replays import Opening, PlannedDelivery, Replay, Replays, ReplayState
from relay.store.rows import EVENT, Row, event_of, within_bytes
from relay.store.sql import Condition, FilteredSql
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import TRIED_SINCE, Moved, open_deliveries
from relay.store.sqlite.shared import Shared, SqliteRepository
from relay.store.sqlite.withdrawals import Withdrawals

_EVENTS = FilteredSql(f"""
SELECT e.seq, {EVENT} FROM main.events AS e
WHERE {{where}} AND e.body IS NOT NULL ORDER BY e.seq LIMIT :limit
""")
_BODY = 6
"""Column of `_EVENTS`."""
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""
# One row of JSON, because Python's lock changes hands at each row.
_STANDING = FilteredSql(f"""
SELECT json_group_array(json_array(
    d.event, d.sink, iif({TRIED_SINCE.format(attempt=":attempt")}, 'pending', d.status), d.reason
)) FROM main.deliveries AS d
WHERE d.event IN (SELECT value FROM json_each(:seqs)) AND {{where}}
""")
_REPLAYING = """
SELECT d.sink, min(r.created_at) FROM deliveries d JOIN replays r ON r.id = d.replay
WHERE d.status = 'pending' AND d.replay IS NOT NULL GROUP BY d.sink
"""


class SqliteReplays(SqliteRepository, Replays):
    """Has what it cancels withdrawn."""

    def __init__(self, shared: Shared, withdrawals: Withdrawals) -> None:
        super().__init__(shared)
        self._withdrawals = withdrawals

    def _events(
        self, db: sqlite3.Connection, where: Condition, limit: int
    ) -> Sequence[tuple[int, Event]]:
        found = db.execute(_EVENTS.where(where), {**where.values, "limit": limit})
        step = within_bytes(found, _STEP_BYTES, lambda row: len(row[_BODY]))
        return [(seq, event_of(event)) for seq, *event in step]

    def _standing(
        self, db: sqlite3.Connection, where: Condition, seqs: Sequence[int], attempt: int
    ) -> Iterable[Row]:
        values = {**where.values, "seqs": orjson.dumps(seqs).decode(), "attempt": attempt}
        (found,) = db.execute(_STANDING.where(where), values).fetchone()
        rows: list[Row] = orjson.loads(found)
        return rows

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        # Below the floor, the free space is for deliveries that are pending already.
        self._room.require()
        step = Opening(replay.id, deliveries, cursor, now_ms)
        opened, _ = await self._writer.transact(
            lambda db: open_deliveries(db, step, self._shared.turns), self._count_opened
        )
        return opened

    def _count_opened(self, result: tuple[Replay, Moved]) -> None:
        self._shared.count(result[1])

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        if state != "cancelled":
            return await self._end(replay.id, state, now_ms)
        cancelled = self._shared.cancelled
        cancelled.add(replay.id)
        try:
            ended = await self._end(replay.id, state, now_ms)
        except StoreError:
            cancelled.discard(replay.id)
            raise
        if ended.state != "cancelled":
            cancelled.discard(replay.id)
            return ended
        # After the end is stored: an attempt that failed before left its delivery pending, and one
        # that fails later takes it back itself.
        try:
            return await self._withdrawals.withdraw(replay.id)
        except StoreError:
            self._withdrawals.start([replay.id])
            raise


def replaying(db: sqlite3.Connection) -> dict[str, int]:
    """Return the start of the oldest replay with pending deliveries, by sink."""
    return dict(db.execute(_REPLAYING).fetchall())
