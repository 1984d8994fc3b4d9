"""Replays in PostgreSQL: their events with bodies, whose sizes are read first."""

from collections.abc import Iterable, Sequence

from relay.core.event import Event
from relay.store.postgres.driver import Database
from relay.store.postgres.operator_writes import TRIED_SINCE, open_deliveries
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.postgres.withdrawals import Withdrawals
from relay.store.replays import Opening, PlannedDelivery, Replay, Replays, ReplayState
from relay.store.rows import EVENT, Row, event_of, within_bytes
from relay.store.sql import Condition, FilteredSql, Sql

# Their bodies are read afterwards: only of those that the step has room for.
_SIZES = FilteredSql("""
SELECT e.seq, length(e.body) FROM main.events AS e
WHERE {where} AND e.body IS NOT NULL ORDER BY e.seq LIMIT :limit
""")
_EVENTS = Sql(f"""
SELECT e.seq, {EVENT} FROM main.events AS e
WHERE e.seq = ANY(CAST(:seqs AS bigint[])) AND e.body IS NOT NULL ORDER BY e.seq
""")
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""

_STANDING = FilteredSql(f"""
SELECT d.event, d.sink,
    CASE WHEN {TRIED_SINCE.format(attempt=":attempt")} THEN 'pending' ELSE d.status END, d.reason
FROM main.deliveries AS d WHERE d.event = ANY(CAST(:seqs AS bigint[])) AND {{where}}
""")
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

    def _events(self, db: Database, where: Condition, limit: int) -> Sequence[tuple[int, Event]]:
        sizes = db.execute(_SIZES.where(where), {**where.values, "limit": limit})
        seqs = [seq for seq, _ in within_bytes(sizes, _STEP_BYTES, lambda row: int(row[1]))]
        return [(seq, event_of(event)) for seq, *event in db.execute(_EVENTS, {"seqs": seqs})]

    def _standing(
        self, db: Database, where: Condition, seqs: Sequence[int], attempt: int
    ) -> Iterable[Row]:
        return db.execute(
            _STANDING.where(where), {**where.values, "seqs": seqs, "attempt": attempt}
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


def replaying(db: Database) -> dict[str, int]:
    """Return the start of the oldest replay with pending deliveries, by sink."""
    return dict(db.execute(_REPLAYING).fetchall())
