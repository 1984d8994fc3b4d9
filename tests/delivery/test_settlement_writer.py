"""How ends reach the store: together, each by itself where one is at fault, and never forgotten."""

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
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import STORE_AGAIN_S, FinishedAttempt, SettlementWriter
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from tests.virtual_time import LoopClock, VirtualLoop

SINK = "crm"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class SlowStore:
    """Takes a second for each write; refuses those that hold one of `refused`."""

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
    def __init__(self, group: asyncio.TaskGroup, lead: Event) -> None:
        self.store = SlowStore()
        self.due: list[float | None] = []
        self.clock = LoopClock()
        settings = SinkSettings(name=SINK, type="http")
        metrics = Metrics(["main"], [SINK], sqlite="3")
        self.settlement_writer = SettlementWriter(
            SINK,
            store=cast("Any", self.store),
            clock=self.clock,
            reporter=DeliveryReporter(
                settings, metrics=metrics, clock=self.clock, activity=ActivityStream(self.clock)
            ),
            settled=lambda _, due_ms: self.due.append(due_ms),
        )
        self._group = group
        self._lead = lead

    def end(self, *numbers: int, result: Result = "delivered", due_ms: int = 0) -> None:
        for number in numbers:
            delivery = Delivery(
                seq=number, sink=SINK, event=self._lead, attempts=0, first_attempt_ms=None
            )
            made = Attempt(
                started_ms=0, duration_ms=5, result=result, status=None, reason="", answer=""
            )
            settlement = Settlement(delivery=delivery, attempt=made, due_ms=due_ms)
            self.settlement_writer.add(self._group, FinishedAttempt(settlement, 0.005))


@asynccontextmanager
async def settling(lead: Event) -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as group:
        bench = Bench(group, lead)
        yield bench
        await bench.settlement_writer.stop()


async def test_what_ends_during_a_write_shares_the_next(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(0.5)
        bench.end(2, 3)
        bench.end(4)
        assert bench.settlement_writer.count == 4
        await bench.settlement_writer.flush(10)
        assert bench.store.writes == [[1], [2, 3, 4]]
        assert bench.settlement_writer.count == 0


async def test_the_fault_of_one_does_not_keep_the_others(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {2}
        bench.end(1, 2, 3)
        await asyncio.sleep(5)
        assert bench.store.writes[:4] == [[1, 2, 3], [1], [2], [3]]
        assert bench.settlement_writer.count == 1


async def test_a_delivered_event_is_written_once_there_is_room_however_late(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        await asyncio.sleep(600)
        bench.store.refused = set()
        await bench.settlement_writer.flush(2 + STORE_AGAIN_S)
        assert bench.settlement_writer.count == 0
        assert bench.due == [None]


async def test_a_failure_without_room_is_forgotten_and_due_again_soon(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1, result="retry", due_ms=9_999_999)
        await bench.settlement_writer.flush(10)
        assert bench.store.released == [1]
        assert bench.due == [bench.clock.now_ms() + STORE_AGAIN_S * 1000]


async def test_a_retry_says_when_it_comes_due(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1, result="retry", due_ms=77)
        bench.end(2, result="parked", due_ms=88)
        bench.end(3, result="dead")
        await bench.settlement_writer.flush(10)
        assert bench.due == [77, 88, None]


async def test_a_flush_waits_no_longer_than_it_is_given(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        began_s = bench.clock.monotonic()
        await bench.settlement_writer.flush(30)
        assert bench.clock.monotonic() - began_s == pytest.approx(30)
        assert bench.settlement_writer.count == 1


async def test_a_stop_gives_the_store_what_it_has_not_had_and_waits_no_more(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.end(1)
        await asyncio.sleep(0.5)
        bench.end(2, 3)
        bench.end(4, result="retry")
        began_s = bench.clock.monotonic()
        await bench.settlement_writer.stop()
        assert bench.store.writes == [[1], [2, 3, 4]]
        assert bench.clock.monotonic() == began_s


async def test_a_stop_gives_once_more_what_was_refused(lead: Event) -> None:
    async with settling(lead) as bench:
        bench.store.refused = {1}
        bench.end(1)
        await asyncio.sleep(1 + STORE_AGAIN_S / 2)
        await bench.settlement_writer.stop()
        assert bench.store.writes == [[1], [1]]


async def test_a_broken_store_ends_whoever_runs_it(lead: Event) -> None:
    async def meet_it() -> None:
        async with settling(lead) as bench:
            bench.store.errors.append(StoreBroken("the store is damaged"))
            bench.end(1, 2)
            await asyncio.sleep(10)

    with pytest.raises(ExceptionGroup) as raised:
        await meet_it()
    assert isinstance(raised.value.exceptions[0], StoreBroken)
