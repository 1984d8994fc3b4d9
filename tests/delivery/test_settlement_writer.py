"""Results reach the store in batches, alone where one is at fault, and none is lost."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from relay.core.delivery import Attempt, Delivery, Result, Settlement
from relay.core.errors import StoreBroken, StoreFull
from relay.core.event import Event
from relay.core.sink import SinkSettings
from relay.delivery.attempt import FinishedAttempt
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import (
    GATHER_S,
    GATHERED_MAX,
    STORE_RETRY_S,
    SettlementWriter,
)
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from tests.virtual_time import LoopClock

SINK = "crm"


class SlowStore:
    """Takes a second per write, and refuses writes with one of `refused`."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.released: list[int] = []
        self.refused: set[int] = set()
        self.errors: deque[Exception] = deque()

    async def settle(self, *settlements: Settlement) -> None:
        numbers = [each.delivery.seq for each in settlements]
        self.writes.append(numbers)
        await asyncio.sleep(1)
        if self.errors:
            raise self.errors.popleft()
        if self.refused & set(numbers):
            raise StoreFull("the disk is full")

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += [each.seq for each in deliveries]


class Bench:
    def __init__(self, group: asyncio.TaskGroup, lead: Event, gathered_max: int) -> None:
        self.store = SlowStore()
        self.due: list[float | None] = []
        self.clock = LoopClock()
        settings = SinkSettings(name=SINK, type="http")
        metrics = Metrics(["main"], [SINK])
        self.settlement_writer = SettlementWriter(
            store=cast("Any", self.store),
            clock=self.clock,
            reporter=DeliveryReporter(
                settings, metrics=metrics, clock=self.clock, activity=ActivityStream(self.clock)
            ),
            on_settled=lambda _, due_ms: self.due.append(due_ms),
            gathered_max=gathered_max,
        )
        self._group = group
        self._lead = lead

    def end(
        self,
        *numbers: int,
        result: Result = "delivered",
        due_ms: int = 0,
        **fields: Any,
    ) -> None:
        for number in numbers:
            delivery = Delivery(
                seq=number, sink=SINK, event=self._lead, attempts=0, first_attempt_ms=None, **fields
            )
            attempt = Attempt(
                started_ms=0, duration_ms=5, result=result, status=None, reason="", answer=""
            )
            settlement = Settlement(delivery=delivery, attempt=attempt, due_ms=due_ms)
            finished = [FinishedAttempt(settlement, 0.005)]
            self.settlement_writer.add(self._group, finished)

    async def written_after_s(self) -> float:
        """Return the seconds until the store gets a write, which then takes one."""
        began_s, writes = self.clock.monotonic(), len(self.store.writes)
        while len(self.store.writes) == writes:
            await asyncio.sleep(0.001)
        return self.clock.monotonic() - began_s


@asynccontextmanager
async def settling(lead: Event, *, gathered_max: int = GATHERED_MAX) -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as group:
        bench = Bench(group, lead, gathered_max)
        yield bench
        await bench.settlement_writer.stop()


async def test_results_that_arrive_during_a_write_share_the_next(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(0.5)
        bench.end(2, 3)
        bench.end(4)
        assert bench.settlement_writer.unsettled == 4
        await bench.settlement_writer.flush(10)
        assert bench.store.writes == [[1], [2, 3, 4]]
        assert bench.settlement_writer.unsettled == 0


async def test_successes_within_a_moment_share_a_write(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(GATHER_S / 2)
        bench.end(2)
        assert await bench.written_after_s() == pytest.approx(GATHER_S / 2, abs=0.002)
        assert bench.store.writes == [[1, 2]]


async def test_enough_successes_do_not_wait_for_more(lead: Event) -> None:
    async with settling(lead, gathered_max=3) as bench:
        bench.end(1, 2, 3)
        assert await bench.written_after_s() < GATHER_S / 2
        bench.end(*range(4, 4 + GATHERED_MAX))
        await bench.settlement_writer.flush(10)
        assert bench.store.writes == [[1, 2, 3], list(range(4, 4 + GATHERED_MAX))]


async def test_no_more_are_gathered_than_a_crash_may_repeat(lead: Event) -> None:
    async with settling(lead, gathered_max=1000) as bench:
        bench.end(*range(GATHERED_MAX))
        assert await bench.written_after_s() < GATHER_S / 2


@pytest.mark.parametrize(
    "urgent",
    [
        {"result": "retry"},
        {"result": "parked"},
        {"result": "dead"},
        {"turn": 1},
        {"replay": 1},
    ],
    ids=str,
)
async def test_a_result_that_others_wait_for_is_written_at_once_with_all_others(
    lead: Event, urgent: dict[str, Any]
) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(GATHER_S / 4)
        bench.end(2, **urgent)
        assert await bench.written_after_s() < GATHER_S / 2
        assert bench.store.writes == [[1, 2]]


async def test_a_flush_ends_the_wait_for_more(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        began_s = bench.clock.monotonic()
        await bench.settlement_writer.flush(10)
        assert bench.clock.monotonic() - began_s == pytest.approx(1)
        assert bench.settlement_writer.unsettled == 0


async def test_a_stop_hands_over_results_that_wait_for_more(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(GATHER_S / 2)
        await bench.settlement_writer.stop()
        assert bench.store.writes == [[1]]


async def test_one_faulty_result_does_not_block_the_others(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {2}
        bench.end(1, 2, 3)
        await asyncio.sleep(5)
        assert bench.store.writes[:4] == [[1, 2, 3], [1], [2], [3]]
        assert bench.settlement_writer.unsettled == 1


async def test_a_success_is_written_once_the_disk_has_space_however_late(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        await asyncio.sleep(600)
        bench.store.refused = set()
        await bench.settlement_writer.flush(2 + STORE_RETRY_S)
        assert bench.settlement_writer.unsettled == 0
        assert bench.due == [None]


async def test_a_failure_on_a_full_disk_is_dropped_and_due_again_soon(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1, result="retry", due_ms=9_999_999)
        await bench.settlement_writer.flush(10)
        assert bench.store.released == [1]
        assert bench.due == [bench.clock.now_ms() + STORE_RETRY_S * 1000]


async def test_a_settled_retry_reports_its_due_time(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1, result="retry", due_ms=77)
        bench.end(2, result="parked", due_ms=88)
        bench.end(3, result="dead")
        await bench.settlement_writer.flush(10)
        assert bench.due == [77, 88, None]


async def test_a_flush_ends_at_its_timeout(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        began_s = bench.clock.monotonic()
        await bench.settlement_writer.flush(30)
        assert bench.clock.monotonic() - began_s == pytest.approx(30)
        assert bench.settlement_writer.unsettled == 1


async def test_a_stop_hands_all_results_to_the_store_and_does_not_wait(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(0.5)
        bench.end(2, 3)
        bench.end(4, result="retry")
        began_s = bench.clock.monotonic()
        await bench.settlement_writer.stop()
        assert bench.store.writes == [[1], [2, 3, 4]]
        assert bench.clock.monotonic() == began_s


async def test_a_stop_hands_over_refused_results_once_more(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        await asyncio.sleep(1 + STORE_RETRY_S / 2)
        await bench.settlement_writer.stop()
        assert bench.store.writes == [[1], [1]]


async def test_a_broken_store_ends_the_task_group(lead: Event) -> None:
    async def run_writer() -> None:
        async with settling(lead) as bench:
            bench.store.errors.append(StoreBroken("the store is damaged"))
            bench.end(1, 2)
            await asyncio.sleep(10)

    with pytest.raises(ExceptionGroup) as raised:
        await run_writer()
    assert isinstance(raised.value.exceptions[0], StoreBroken)
