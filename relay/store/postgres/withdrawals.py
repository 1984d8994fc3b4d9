"""Withdrawal of deliveries that cancelled replays have left pending.

Cancelling only marks the replay. Which deliveries are in flight is known to the owner of their
sink, and the owner withdraws the others.
"""

import asyncio
from contextlib import suppress

from relay.core.errors import StoreError
from relay.store.postgres import operator_writes
from relay.store.postgres.driver import Database
from relay.store.postgres.shared import PostgresRepository, Shared

STEP_ROWS = 1000
"""Deliveries withdrawn per transaction, so that others can run in between."""

SWEEP_S = 5.0
"""Interval at which the rest is withdrawn."""

_CANCELLED = """
SELECT id FROM relay.replays r WHERE state = 'cancelled' AND EXISTS (
    SELECT 1 FROM relay.deliveries d WHERE d.replay = r.id AND d.status = 'pending'
)
"""


class Withdrawals(PostgresRepository):
    """Withdraws at once, and the rest by and by.

    A delivery may be left pending because it was in flight and did not end it, because another
    relay dispatches its sink, or because the database was away.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._leases = shared.leases
        self._fences = shared.fences
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def withdraw(self, replay: int) -> None:
        """Withdraw all of a cancelled replay that is not in flight; raises StoreError."""
        since: int | None = 0
        while since is not None:
            since = await self._step(replay, since)

    async def close(self) -> None:
        """Stop; another relay, or the next start, withdraws the rest."""
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping

    async def _step(self, replay: int, since: int) -> int | None:
        """Withdraw some from an event on; return the event to go on from, None at the end."""
        rows = await self._reader.read(
            lambda db: operator_writes.of_cancelled(db, replay, since=since, limit=STEP_ROWS)
        )
        mine = [(each.event, each.sink) for each in rows if self._may_withdraw(each)]
        if mine:
            await self._background.transact(lambda db: operator_writes.restore(db, replay, mine))
            self._shared.ended.update(sink for _, sink in mine)
            self._leases.walk_again({sink for _, sink in mine})
        return max(rows[-1].event, since + 1) if len(rows) == STEP_ROWS else None

    def _may_withdraw(self, opened: operator_writes.Opened) -> bool:
        """Whether it is not in flight."""
        if self._fences.holds(opened.sink):
            return not self._leases.is_held(opened.sink, opened.event)
        return not opened.is_owned

    async def _sweep(self) -> None:
        while True:
            with suppress(StoreError):
                for replay in await self._reader.read(_cancelled):
                    await self.withdraw(replay)
            await asyncio.sleep(SWEEP_S)


def _cancelled(db: Database) -> list[int]:
    """Return the cancelled replays that have pending deliveries."""
    return [number for (number,) in db.execute(_CANCELLED).fetchall()]
