"""Discards in SQLite, which keep the numbers in memory up to date."""

from relay.core.delivery import Status
from relay.store.dead_letters import DeadLetters, Keys
from relay.store.sqlite.accept import last_number
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import Moved
from relay.store.sqlite.shared import SqliteRepository

_DISCARD = """
UPDATE deliveries SET status = 'discarded', settled_at = ?
WHERE event = ? AND sink = ? AND status = 'dead'
"""
_GIVE_UP = """
UPDATE deliveries SET status = 'discarded', settled_at = ?,
    reason = 'discarded by an operator' || iif(reason IS NULL, '', ' after: ' || reason)
WHERE event = ? AND sink = ? AND status = 'pending'
"""


class SqliteDeadLetters(SqliteRepository, DeadLetters):
    """Counts what it moves."""

    async def _last_event(self) -> int:
        return await self._reader.read(last_number)

    async def _discard(self, keys: Keys, now_ms: int) -> int:
        moved = await self._writer.transact(
            lambda db: discard(db, keys, now_ms), self._shared.count
        )
        return -sum(n for (_, status), n in moved.items() if status is Status.DEAD)

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        moved = await self._writer.transact(
            lambda db: give_up(db, seq, sink, now_ms=now_ms), self._shared.count
        )
        return moved[sink, Status.DISCARDED] > 0


def discard(db: sqlite3.Connection, keys: Keys, now_ms: int) -> Moved:
    """Discard dead letters, by event and sink."""
    moved = Moved()
    for event, sink in keys:
        count = db.execute(_DISCARD, (now_ms, event, sink)).rowcount
        moved[sink, Status.DEAD] -= count
        moved[sink, Status.DISCARDED] += count
    return moved


def give_up(db: sqlite3.Connection, event: int, sink: str, *, now_ms: int) -> Moved:
    """Discard a pending delivery."""
    count = db.execute(_GIVE_UP, (now_ms, event, sink)).rowcount
    return Moved({(sink, Status.PENDING): -count, (sink, Status.DISCARDED): count})
