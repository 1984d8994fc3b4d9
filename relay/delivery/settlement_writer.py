"""Persists the outcomes of one sink's attempts."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from relay.core.clock import Clock
from relay.core.delivery import DAMAGED, Attempt, Delivery, Settlement
from relay.core.errors import StoreError, StoreUnavailable
from relay.delivery.attempt import FinishedAttempt
from relay.delivery.reporter import DeliveryReporter
from relay.store import Store

STORE_RETRY_S = 1.0

WRITE_LIMIT_S = 30.0
"""Time within which a write ends: a database that does not answer is given up after half of it."""

GATHER_S = 0.02
GATHERED_MAX = 16
"""Confirmed deliveries share a write: the first waits this long for this many at most.

A crash within that time sends them again.
"""


class SettlementWriter:
    """Persists attempt results and retries until it succeeds: an unsettled delivery is sent again.

    Results that arrive during a write share the next one, and so do live deliveries that succeeded
    within a moment. A failure, a replay, and a delivery that others wait for, are written at once.
    A failed attempt that finds the disk full is dropped, so that it blocks no delivered one.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        reporter: DeliveryReporter,
        on_settled: Callable[[Delivery, float | None], None],
        gathered_max: int = GATHERED_MAX,
    ) -> None:
        """`on_settled` takes each delivery and its next due time, None if it is finished.

        With `gathered_max` results, or `GATHERED_MAX`, none waits for more.
        """
        self._store = store
        self._clock = clock
        self._reporter = reporter
        self._on_settled = on_settled
        self._gathered_max = min(gathered_max, GATHERED_MAX)
        self._queue: list[FinishedAttempt] = []
        self._is_due = asyncio.Event()
        """The queue is not to wait for more."""
        self._writing: asyncio.Task[None] | None = None
        self._began_s = -math.inf
        """Start of the last write."""
        self.unsettled = 0
        """Number of results that are not on disk yet."""

    def is_at_work(self) -> bool:
        """Whether a write began lately; those that the store refuses are repeated each second."""
        return self._clock.monotonic() - self._began_s < WRITE_LIMIT_S

    def add(
        self,
        group: asyncio.TaskGroup,
        batch: Sequence[FinishedAttempt],
        *,
        at_once: bool = False,
    ) -> None:
        """Queue results; a broken store raises StoreBroken in the group."""
        self.unsettled += len(batch)
        self._queue += batch
        if at_once or len(self._queue) >= self._gathered_max or not all(map(_may_wait, batch)):
            self._is_due.set()
        if self._writing is None:
            self._writing = group.create_task(self._write_all())

    def dead_letter(self, group: asyncio.TaskGroup, damaged: Sequence[Delivery]) -> None:
        """Dead-letter deliveries that cannot be sent, because their stored body is damaged."""
        now_ms = self._clock.now_ms()
        self._reporter.damaged(len(damaged))
        attempt = Attempt(started_ms=now_ms, duration_ms=0, result="dead", reason=DAMAGED)
        for delivery in damaged:
            settlement = Settlement(delivery=delivery, attempt=attempt, due_ms=now_ms)
            self.add(group, [FinishedAttempt(settlement, 0.0)])

    async def flush(self, timeout_s: float) -> None:
        """Wait until all results are on disk, or for the timeout."""
        self._is_due.set()
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=timeout_s)

    async def stop(self) -> None:
        """Stop waiting for the store; a result that it refuses now is lost, its delivery due."""
        if self._writing is None:
            return
        self._writing.cancel()
        queue, self._queue = self._queue, []
        if queue:
            # The store keeps the write after the timeout: a disk that hangs may recover.
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(0):
                    await self._store.settle(*(finished.settlement for finished in queue))

    async def _write_all(self) -> None:
        while self._queue:
            await self._gather()
            queue, self._queue = self._queue, []
            failed = await self._write(queue)
            if failed:
                self._queue = failed + self._queue
                await asyncio.sleep(STORE_RETRY_S)
                self._is_due.set()
        self._writing = None

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._is_due.wait()
        self._is_due.clear()

    async def _write(self, batch: list[FinishedAttempt]) -> list[FinishedAttempt]:
        """Return the results to be written again."""
        self._began_s = self._clock.monotonic()
        try:
            await self._store.settle(*(finished.settlement for finished in batch))
        except StoreUnavailable as error:
            if len(batch) == 1:
                return self._fail(batch[0], error)
            # One result may be at fault, and must not block the others.
            return [failed for finished in batch for failed in await self._write([finished])]
        for finished in batch:
            self._settle(finished, due_ms=finished.settlement.due_ms)
        self._reporter.log([finished.settlement for finished in batch])
        return []

    def _fail(self, finished: FinishedAttempt, error: StoreError) -> list[FinishedAttempt]:
        self._reporter.store_failed(error)
        if not _stays_pending(finished):
            return [finished]
        self._store.release((finished.settlement.delivery,))
        self._settle(finished, due_ms=self._clock.now_ms() + STORE_RETRY_S * 1000)
        self._reporter.log([finished.settlement])
        return []

    def _settle(self, finished: FinishedAttempt, *, due_ms: float) -> None:
        self.unsettled -= 1
        next_due_ms = due_ms if _stays_pending(finished) else None
        self._on_settled(finished.settlement.delivery, next_due_ms)
        self._reporter.attempted(finished.settlement, seconds=finished.seconds)


def _may_wait(finished: FinishedAttempt) -> bool:
    delivery = finished.settlement.delivery
    is_delivered = finished.settlement.attempt.result == "delivered"
    return is_delivered and delivery.replay is None and delivery.turn is None


def _stays_pending(finished: FinishedAttempt) -> bool:
    return finished.settlement.attempt.result in ("retry", "parked")
