"""Withdrawal of deliveries that cancelled replays have left pending.

Whoever cancels a replay only marks it. The owner of a sink knows which deliveries are in flight, so
that it withdraws the others.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from relay.core.errors import StoreError
from relay.store.postgres import operator_writes
from relay.store.postgres import replays as replay_queries
from relay.store.postgres.shared import Part, Shared
from relay.store.replays import Replay

STEP_ROWS = 1000
"""Deliveries withdrawn per transaction, so that others can run in between."""

RETRY_S = 1.0


class Withdrawals(Part):
    """Withdraws at once, or in the background, where it retries until it succeeds.

    A delivery may be left pending because it was in flight and ends without a settlement, or
    because the database was away.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._leases = shared.leases
        self._fences = shared.fences
        self._replays: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    async def withdraw(self, replay: int) -> Replay:
        """Withdraw all of a cancelled replay that is not in flight; raises StoreError."""
        since: int | None = 0
        while since is not None:
            since = await self._step(replay, since)
        return await self._reader.read(lambda db: replay_queries.existing(db, replay))

    def start(self, replays: Iterable[int | None]) -> None:
        """Withdraw in the background what belongs to a replay that is cancelled."""
        self._replays.update(each for each in replays if each is not None)
        if self._replays and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def sweep(self) -> None:
        """Start with all replays that others have cancelled; raises StoreError."""
        self.start(await self._reader.read(replay_queries.cancelled))

    async def close(self) -> None:
        """Stop; the next start withdraws the rest."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _step(self, replay: int, since: int) -> int | None:
        """Withdraw some from an event on; return the event to go on from, None at the end."""
        found = await self._reader.read(
            lambda db: operator_writes.of_cancelled(db, replay, since=since, limit=STEP_ROWS)
        )
        mine = [key for key in found if self._may_withdraw(*key)]
        if mine:
            await self._writer.transact(lambda db: operator_writes.take_back(db, replay, mine))
            self._leases.walk_again({sink for _, sink in mine})
        return max(found[-1][0], since + 1) if len(found) == STEP_ROWS else None

    def _may_withdraw(self, event: int, sink: str) -> bool:
        return self._fences.holds(sink) and not self._leases.is_held(sink, event)

    async def _run(self) -> None:
        while self._replays:
            replay = self._replays.pop()
            try:
                await self.withdraw(replay)
            except StoreError:
                self._replays.add(replay)
                await asyncio.sleep(RETRY_S)
