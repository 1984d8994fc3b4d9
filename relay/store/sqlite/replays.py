"""Replays in SQLite: their events with bodies, and cancellations that leases in memory heed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import orjson

from relay.core.delivery import Status
from relay.core.errors import StoreError
from relay.core.routing import Route
from relay.store.replays import (
    DeliveryState,
    Mark,
    Opening,
    PlannedDelivery,
    Replay,
    ReplayCandidate,
    Replays,
    ReplayState,
)
from relay.store.rows import EVENT, event_of, within_bytes
from relay.store.selection import Selection, all_of
from relay.store.sqlite.conditions import fits, of_delivery
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import TRIED_SINCE, Moved, open_deliveries
from relay.store.sqlite.shared import Shared, SqliteRepository
from relay.store.sqlite.withdrawals import Withdrawals

_CHOSEN = f"""
SELECT e.seq, {EVENT}
FROM events e WHERE {{fits}} AND e.seq <= ? AND e.body IS NOT NULL ORDER BY e.seq LIMIT ?
"""
_BODY = 6
"""Column of `_CHOSEN`."""
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""
# One row of JSON, because Python's lock changes hands at each row.
_STANDING = f"""
SELECT json_group_array(json_array(
    d.event, d.sink,
    iif({TRIED_SINCE.format(event="d.event", sink="d.sink")}, 'pending', d.status), d.reason
)) FROM deliveries d
WHERE d.event IN (SELECT value FROM json_each(?)) AND {{condition}}
"""
_REPLAYING = """
SELECT d.sink, min(r.created_at) FROM deliveries d JOIN replays r ON r.id = d.replay
WHERE d.status = 'pending' AND d.replay IS NOT NULL GROUP BY d.sink
"""


class SqliteReplays(SqliteRepository, Replays):
    """Has what it cancels withdrawn."""

    def __init__(self, shared: Shared, withdrawals: Withdrawals) -> None:
        super().__init__(shared)
        self._withdrawals = withdrawals

    async def choose(
        self,
        selection: Selection,
        routes: Sequence[Route],
        *,
        after: int,
        until: Mark,
        limit: int,
    ) -> Sequence[ReplayCandidate]:
        return await self._reader.read(
            lambda db: choose(db, selection, routes, after=after, until=until, limit=limit)
        )

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


def choose(
    db: sqlite3.Connection,
    selection: Selection,
    routes: Sequence[Route],
    *,
    after: int,
    until: Mark,
    limit: int,
) -> list[ReplayCandidate]:
    """Return the oldest selected events that still have their body."""
    where, values = fits(db, selection, routes, ("e.seq > ?", [after]))
    selected = db.execute(_CHOSEN.format(fits=where), (*values, until.event, limit))
    rows = list(within_bytes(selected, _STEP_BYTES, lambda row: len(row[_BODY])))
    standing = _standing(db, selection, [row[0] for row in rows], until.attempt)
    return [ReplayCandidate(seq, event_of(event), standing[seq]) for seq, *event in rows]


def _standing(
    db: sqlite3.Connection, selection: Selection, seqs: Sequence[int], attempt: int
) -> Mapping[int, dict[str, DeliveryState]]:
    """Return the selected deliveries, by event and sink."""
    condition, values = all_of(*of_delivery(selection))
    sql = _STANDING.format(condition=condition)
    row = db.execute(sql, (attempt, orjson.dumps(seqs).decode(), *values)).fetchone()
    standing: defaultdict[int, dict[str, DeliveryState]] = defaultdict(dict)
    for event, sink, status, reason in orjson.loads(row[0]):
        standing[event][sink] = DeliveryState(Status(status), reason)
    return standing


def replaying(db: sqlite3.Connection) -> dict[str, int]:
    """Return the start of the oldest replay with pending deliveries, by sink."""
    return dict(db.execute(_REPLAYING).fetchall())
