"""Replays in PostgreSQL: their events with bodies, whose sizes are read first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from relay.core.delivery import Status
from relay.core.routing import Route
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.conditions import fits, of_delivery
from relay.store.postgres.driver import Database
from relay.store.postgres.missed import missed
from relay.store.postgres.operator_writes import TRIED_SINCE, open_deliveries
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.postgres.withdrawals import Withdrawals
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

# Their bodies are read afterwards: only of those that the step has room for.
_CHOSEN = """
SELECT e.seq, octet_length(e.body) FROM relay.events e
WHERE {fits} AND e.body IS NOT NULL ORDER BY e.seq LIMIT %s
"""
_EVENTS = f"""
SELECT e.seq, {EVENT} FROM relay.events e
WHERE e.seq = ANY(%b::bigint[]) AND e.body IS NOT NULL ORDER BY e.seq
"""
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""

_STANDING = f"""
SELECT d.event, d.sink,
    CASE WHEN {TRIED_SINCE.format(attempt="%s")} THEN 'pending' ELSE d.status END, d.reason
FROM relay.deliveries d WHERE d.event = ANY(%b::bigint[]) AND {{condition}}
"""
# By tier, because each has its index.
_REPLAYING = """
SELECT d.sink, min(r.created_at) FROM (
    SELECT DISTINCT sink, replay FROM relay.deliveries
    WHERE status = 'pending' AND replay IS NOT NULL AND tries = 0
    UNION
    SELECT sink, replay FROM relay.deliveries WHERE status = 'pending' AND tries > 0
) AS d JOIN relay.replays r ON r.id = d.replay GROUP BY d.sink
"""


class PostgresReplays(PostgresRepository, Replays):
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
        digests = self._shared.digests
        return await self._reader.read(
            lambda db: choose(db, selection, routes, digests, after=after, until=until, limit=limit)
        )

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        step = Opening(replay.id, deliveries, cursor, now_ms)
        return await self._background.transact(
            lambda db: open_deliveries(db, step, self._shared.turns)
        )

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        ended = await self._end(replay.id, state, now_ms)
        if ended.state != "cancelled":
            return ended
        await self._withdrawals.withdraw(replay.id)
        return await self.one(replay.id) or ended


def choose(
    db: Database,
    selection: Selection,
    routes: Sequence[Route],
    digests: PersonDigests,
    *,
    after: int,
    until: Mark,
    limit: int,
) -> list[ReplayCandidate]:
    """Return the oldest selected events that still have their body."""
    span = "e.seq > %s AND e.seq <= %s", [after, until.event]
    condition = fits(db, selection, digests, span)
    if selection.outcome == "missed":
        condition = missed(db, selection, routes, condition, order="ASC", limit=limit)
    where, values = condition
    rows = db.execute(_CHOSEN.format(fits=where), (*values, limit)).fetchall()
    seqs = [row[0] for row in within_bytes(rows, _STEP_BYTES, lambda row: int(row[1]))]
    events = {seq: event_of(event) for seq, *event in db.execute(_EVENTS, (seqs,)).fetchall()}
    standing = _standing(db, selection, seqs, until.attempt)
    return [ReplayCandidate(seq, event, standing[seq]) for seq, event in events.items()]


def _standing(
    db: Database, selection: Selection, seqs: Sequence[int], attempt: int
) -> Mapping[int, dict[str, DeliveryState]]:
    """Return the selected deliveries, by event and sink."""
    condition, values = all_of(*of_delivery(selection))
    rows = db.execute(_STANDING.format(condition=condition), (attempt, seqs, *values)).fetchall()
    standing: defaultdict[int, dict[str, DeliveryState]] = defaultdict(dict)
    for event, sink, status, reason in rows:
        standing[event][sink] = DeliveryState(Status(status), reason)
    return standing


def replaying(db: Database) -> dict[str, int]:
    """Return the start of the oldest replay with pending deliveries, by sink."""
    return dict(db.execute(_REPLAYING).fetchall())
