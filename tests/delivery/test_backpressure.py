"""A dispatcher while requests wait: what credit starts, and what it never overrides."""

import asyncio
from itertools import pairwise
from pathlib import Path

from relay.core.acceptance import RELIEF_S
from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.delivery_credit import ACKNOWLEDGEMENTS_PER_DELIVERY, SAVED_MAX, SHARED_AT
from relay.core.retry import FAILURE_THRESHOLD
from relay.delivery.circuit_breaker import PROBE_MAX_S
from relay.delivery.dispatcher import BACKPRESSURE_POLL_S
from tests.delivery.dispatching import DOWN, Bench, ScriptedBatches, policy, rate, working

IDS = [f"evt_{number:02}" for number in range(2 * SHARED_AT + 8)]
HOUR = Duration.parse("1h")


async def accept(bench: Bench) -> None:
    """Accept events, and let the first of them start."""
    await bench.accept(*IDS)
    await asyncio.sleep(1)


async def test_credit_starts_sends_beside_those_in_flight(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=1 + 2 * SHARED_AT, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        with bench.busy():
            await accept(bench)
            bench.earn(SHARED_AT)
            await asyncio.sleep(0.01)
            assert bench.sink.in_flight == 1 + SHARED_AT
            bench.earn(SHARED_AT)
            await asyncio.sleep(0.01)
            assert bench.sink.in_flight == 1 + 2 * SHARED_AT


async def test_no_send_starts_without_credit_while_credit_is_earned(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.acknowledge(1)
        with bench.busy():
            await bench.accept(*IDS)
            for _ in range(ACKNOWLEDGEMENTS_PER_DELIVERY - 2):
                await asyncio.sleep(BACKPRESSURE_POLL_S / 2)
                bench.acknowledge(1)
            assert not bench.sink.sent


async def test_sends_start_soon_after_backpressure_has_ended(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        bench.acknowledge(1)
        with bench.busy():
            await bench.accept(*IDS)
            await asyncio.sleep(RELIEF_S)
            assert not bench.sink.sent
        await asyncio.sleep(2 * RELIEF_S)
        assert len(bench.sink.sent) == 30


async def test_no_send_starts_in_a_short_gap_between_bursts_of_requests(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.acknowledge(1)
        with bench.busy():
            await bench.accept(*IDS)
            await asyncio.sleep(RELIEF_S)
        for _ in range(4):
            await asyncio.sleep(RELIEF_S / 2)
            with bench.busy():
                await asyncio.sleep(RELIEF_S)
        assert not bench.sink.sent


async def test_a_send_that_ends_in_such_a_gap_starts_no_other_without_credit(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, concurrency=SHARED_AT, timeout=HOUR) as bench:
        bench.sink.always = 1.0
        bench.acknowledge(1)
        with bench.busy():
            await bench.accept(*IDS)
            bench.earn(SHARED_AT)
            await asyncio.sleep(BACKPRESSURE_POLL_S + 1.0 - RELIEF_S / 2)
            assert bench.sink.in_flight == SHARED_AT
        await asyncio.sleep(RELIEF_S * 0.9)
        with bench.busy():
            await asyncio.sleep(RELIEF_S)
            assert len(bench.sink.done) == len(bench.sink.sent) == SHARED_AT


async def test_a_little_credit_is_used_soon(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.acknowledge(1)
        with bench.busy():
            await bench.accept(*IDS)
            bench.acknowledge(3 * ACKNOWLEDGEMENTS_PER_DELIVERY)
            await asyncio.sleep(BACKPRESSURE_POLL_S + 0.01)
            assert len(bench.sink.sent) == 3


async def test_one_event_is_sent_at_a_time_if_nothing_is_acknowledged_any_longer(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.sink.always = 1.0
        with bench.busy():
            bench.earn(1)
            await bench.accept(*IDS)
            await asyncio.sleep(10)
        assert bench.sink.most_in_flight == 1
        assert 8 <= len(bench.sink.done) <= 10


async def test_credit_starts_no_more_than_the_slots_allow(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=5, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        with bench.busy():
            await accept(bench)
            bench.earn(SAVED_MAX)
            await asyncio.sleep(10)
            assert bench.sink.in_flight == 5


async def test_a_slot_that_ends_goes_on_with_the_credit_left(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=2, timeout=HOUR) as bench:
        bench.sink.reply(600.0, to=IDS[0])
        bench.sink.always = 1.0
        with bench.busy():
            await accept(bench)
            bench.earn(SHARED_AT)
            await asyncio.sleep(2 * SHARED_AT)
            assert len(bench.sink.done) == SHARED_AT


async def test_credit_caps_a_batch(tmp_path: Path) -> None:
    sink = ScriptedBatches()
    sink.always = 60.0
    async with working(tmp_path, sink=sink, concurrency=160, timeout=HOUR) as bench:
        with bench.busy():
            await accept(bench)
            bench.earn(SHARED_AT)
            await asyncio.sleep(0.01)
    assert [len(batch) for batch in sink.batches] == [1, SHARED_AT]


async def test_credit_does_not_override_the_rate(tmp_path: Path) -> None:
    async with working(tmp_path, rate=rate("2/s"), concurrency=50, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        with bench.busy():
            await accept(bench)
            for _ in range(900):
                bench.earn(SHARED_AT)
                await asyncio.sleep(0.01)
        gaps = [late - early for early, late in pairwise(bench.sink.times)]
        assert len(gaps) >= 17
        assert min(gaps) >= 0.499


async def test_credit_does_not_override_a_pause(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=30, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        with bench.busy():
            await accept(bench)
            bench.dispatcher.pause()
            bench.earn(SAVED_MAX)
            await asyncio.sleep(30)
            assert len(bench.sink.sent) == 1
            bench.dispatcher.resume()
            bench.earn(SHARED_AT)
            await asyncio.sleep(1)
            assert len(bench.sink.sent) > 1


async def test_credit_does_not_override_the_breaker(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=5, retry=policy(first="1s", max="1h")) as bench:
        bench.sink.always = DOWN
        with bench.busy():
            await accept(bench)
            for _ in range(600):
                bench.earn(SHARED_AT)
                await asyncio.sleep(1)
        assert len(bench.sink.sent) >= FAILURE_THRESHOLD
        assert len(bench.sink.sent) < FAILURE_THRESHOLD + 8 + 600 / PROBE_MAX_S
        bench.sink.always = SinkResponse(200, "ok")
        await bench.settled()


async def test_credit_is_not_needed_without_backpressure(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=7, timeout=HOUR) as bench:
        bench.sink.always = 60.0
        await accept(bench)
        assert bench.sink.in_flight == 7
