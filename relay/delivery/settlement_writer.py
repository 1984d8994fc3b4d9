"""What became of one sink's deliveries, on its way to the disk."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from relay.core.clock import Clock
from relay.core.delivery import DAMAGED, Attempt, Delivery, Settlement
from relay.core.errors import StoreBroken, StoreError
from relay.delivery.reporter import DeliveryReporter
from relay.store import Store
from relay.telemetry import log

STORE_AGAIN_S = 1.0


class FinishedAttempt(NamedTuple):
    """An attempt that is over, and how long it took."""

    settlement: Settlement
    seconds: float


class SettlementWriter:
    """Writes ends down however long that takes, for without it the events are sent again.

    Those that come while a write is under way share the next one.
    A failed attempt that finds no room is forgotten: it would keep its place from what may succeed.
    """

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        clock: Clock,
        reporter: DeliveryReporter,
        settled: Callable[[Delivery, float | None], None],
    ) -> None:
        """`settled` is told after each end when its delivery comes due again, if it does."""
        self._name = name
        self._store = store
        self._clock = clock
        self._reporter = reporter
        self._settled = settled
        self._sampled = log.Sampled(clock)
        self._ended: list[FinishedAttempt] = []
        self._writing: asyncio.Task[None] | None = None
        self.count = 0
        """How many wait for the disk."""

    def add(self, group: asyncio.TaskGroup, ended: FinishedAttempt) -> None:
        """Have it written soon; what is wrong with the whole store is raised in the group."""
        self.count += 1
        self._ended.append(ended)
        if self._writing is None:
            self._writing = group.create_task(self._write_all())

    def bury(self, group: asyncio.TaskGroup, damaged: Sequence[Delivery]) -> None:
        """Make dead letters of deliveries that are not sent, because their body is damaged."""
        now_ms = self._clock.now_ms()
        self._reporter.damaged(len(damaged))
        for delivery in damaged:
            never = Attempt(
                started_ms=now_ms,
                duration_ms=0,
                result="dead",
                status=None,
                reason=DAMAGED,
                answer="",
            )
            settlement = Settlement(delivery=delivery, attempt=never, due_ms=now_ms)
            self.add(group, FinishedAttempt(settlement, 0.0))

    async def flush(self, limit_s: float) -> None:
        """Wait until all is written, or as long as the limit."""
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=limit_s)

    async def stop(self) -> None:
        """Wait no more for what is not written; what the store refuses now comes due again."""
        if self._writing is None:
            return
        self._writing.cancel()
        ended, self._ended = self._ended, []
        if ended:
            # It takes what it is given, also where nobody waits: a disk that hangs may come back.
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(0):
                    await self._store.settle(*(each.settlement for each in ended))

    async def _write_all(self) -> None:
        while self._ended:
            ended, self._ended = self._ended, []
            failed = await self._write(ended)
            if failed:
                self._ended = failed + self._ended
                await asyncio.sleep(STORE_AGAIN_S)
        self._writing = None

    async def _write(self, ended: list[FinishedAttempt]) -> list[FinishedAttempt]:
        """Return those to be written again."""
        try:
            await self._store.settle(*(each.settlement for each in ended))
        except StoreBroken:
            raise
        except StoreError as error:
            if len(ended) == 1:
                return self._fail(ended[0], error)
            # The fault may be one's own, and must not keep the others.
            return [failed for each in ended for failed in await self._write([each])]
        for each in ended:
            self._end(each, due_ms=each.settlement.due_ms)
        self._reporter.log([each.settlement for each in ended])
        return []

    def _fail(self, ended: FinishedAttempt, error: StoreError) -> list[FinishedAttempt]:
        self._sampled.line("store.unavailable", reason=str(error), sink=self._name)
        if not _goes_on(ended):
            return [ended]
        self._store.release((ended.settlement.delivery,))
        self._end(ended, due_ms=self._clock.now_ms() + STORE_AGAIN_S * 1000)
        self._reporter.log([ended.settlement])
        return []

    def _end(self, ended: FinishedAttempt, *, due_ms: float) -> None:
        self.count -= 1
        self._settled(ended.settlement.delivery, due_ms if _goes_on(ended) else None)
        self._reporter.attempted(ended.settlement, seconds=ended.seconds)


def _goes_on(ended: FinishedAttempt) -> bool:
    return ended.settlement.attempt.result in ("retry", "parked")
