"""Withdrawal of deliveries that cancelled replays have left pending."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from relay.core.errors import StoreBroken, StoreError
from relay.store.replays import Replay
from relay.store.sqlite import operator_writes
from relay.store.sqlite.shared import Shared

RETRY_S = 1.0


class Withdrawals:
    """Withdraws at once, or in the background, where it retries until it succeeds.

    A delivery may be left pending because it was in flight and ends without a settlement, or
    because the disk was full.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._replays: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    async def withdraw(self, replay: int) -> Replay:
        """Withdraw all of a cancelled replay that is not in flight; raises StoreError."""
        leased = self._shared.leased.items()
        in_flight = frozenset((seq, sink) for sink, held in leased for seq in held)
        withdrawn, _ = await self._shared.writer.transact(
            lambda db: operator_writes.withdraw(db, replay, in_flight),
            lambda result: self._shared.count(result[1]),
        )
        return withdrawn

    def start(self, replays: Iterable[int | None]) -> None:
        """Withdraw in the background what belongs to a cancelled replay."""
        self._replays |= self._shared.cancelled.intersection(replays)
        if self._replays and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; the next start withdraws the rest."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._replays:
            replay = self._replays.pop()
            try:
                await self.withdraw(replay)
            except StoreBroken:
                # The heartbeat fails too, and ends the process.
                return
            except StoreError:
                self._replays.add(replay)
                await asyncio.sleep(RETRY_S)
