"""Discards in PostgreSQL; each write may run twice."""

from relay.store.dead_letters import DeadLetters, Keys
from relay.store.postgres import orders
from relay.store.postgres.driver import Database
from relay.store.postgres.operator_writes import NAMED, named
from relay.store.postgres.shared import PostgresRepository
from relay.store.postgres.text import storable

_DISCARD = f"""
{NAMED}
UPDATE relay.deliveries d SET status = 'discarded', settled_at = %(now)s
FROM named n WHERE d.ctid = n.place AND n.status = 'dead'
"""
_DISCARDED = f"""
{NAMED}
SELECT count(*) FROM named WHERE status = 'discarded' AND settled_at = %(now)s
"""
_GIVE_UP = """
UPDATE relay.deliveries SET status = 'discarded', settled_at = %s, turn = NULL,
    reason = concat_ws(' after: ', 'discarded by an operator', reason)
WHERE event = %s AND sink = %s AND status = 'pending'
"""


class PostgresDeadLetters(PostgresRepository, DeadLetters):
    """Counts what was discarded by what is there afterwards."""

    async def _last_event(self) -> int:
        return await self._shared.events.last()

    async def _discard(self, keys: Keys, now_ms: int) -> int:
        return await self._background.transact(lambda db: discard(db, keys, now_ms))

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        given_up = await self._background.transact(
            lambda db: give_up(db, seq, storable(sink), now_ms=now_ms)
        )
        # The next one of its turn may be due earlier than those that were looked at last.
        self._shared.leases.walk_again([sink])
        self._shared.ended[sink] += given_up
        return given_up


def discard(db: Database, keys: Keys, now_ms: int) -> int:
    """Discard dead letters; return how many were discarded at this time."""
    values = {**named(keys), "now": now_ms}
    db.execute(_DISCARD, values)
    return int(db.execute(_DISCARDED, values).fetchall()[0][0])


def give_up(db: Database, event: int, sink: str, *, now_ms: int) -> bool:
    """Discard a pending delivery; False if there was none."""
    db.execute(_GIVE_UP, (now_ms, event, sink))
    orders.count(db)
    values = {**named([(event, sink)]), "now": now_ms}
    return bool(db.execute(_DISCARDED, values).fetchall()[0][0])
