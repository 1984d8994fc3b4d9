"""A destination that refuses everything keeps its backlog; one that refuses some events goes on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay.core.delivery import SinkResponse
from relay.core.errors import Temporary
from relay.core.retry import FAILURE_THRESHOLD, Refusals
from relay.core.routing import Verdict
from relay.delivery.circuit_breaker import PROBE_MAX_S
from tests.delivery.dispatching import (
    HOUR_S,
    SINK,
    Bench,
    ScriptedBatches,
    ScriptedSink,
    lead,
    now_s,
    policy,
    working,
)
from tests.delivery.test_poison import REFUSED, SOON_S, bad, choosy, delivered, row, waited_s

pytestmark = pytest.mark.servers

WELL = SinkResponse(200, "ok")
LOST = FAILURE_THRESHOLD - 1
"""Events that become dead letters before the destination is blamed."""


def refusing(**values: Any) -> ScriptedSink:
    sink = ScriptedBatches() if values.get("batches") else ScriptedSink()
    sink.always = REFUSED
    return sink


async def takes_everything_again(bench: Bench) -> None:
    bench.sink.always = WELL
    await asyncio.sleep(PROBE_MAX_S + 1)
    await bench.settled(within_s=SOON_S)


@pytest.mark.parametrize("batches", [False, True], ids=["alone", "in_batches"])
@pytest.mark.parametrize("concurrency", [1, 4, 16])
async def test_a_destination_that_refuses_everything_costs_four_events(
    tmp_path: Path, concurrency: int, batches: bool
) -> None:
    sink = refusing(batches=batches)
    async with working(tmp_path, sink=sink, concurrency=concurrency) as bench:
        await bench.accept(*(f"e{number}" for number in range(40)))
        await asyncio.sleep(HOUR_S)
        status = bench.dispatcher.status()
        assert (await bench.dead(), await bench.pending()) == (LOST, 40 - LOST)
        assert (status.state, status.refusals) == ("parked", Refusals(REFUSED.reason))
        assert status.last_error == f"it refuses every event: {REFUSED.reason}"
        await takes_everything_again(bench)
        assert await bench.dead() == LOST
        status = bench.dispatcher.status()
        assert (status.state, status.refusals) == ("active", None)


async def test_events_in_flight_at_the_fifth_refusal_stay_pending(tmp_path: Path) -> None:
    async def slowly() -> SinkResponse:
        await asyncio.sleep(1)
        raise REFUSED

    async with working(tmp_path, concurrency=8) as bench:
        bench.sink.always = slowly
        await bench.accept(*(f"e{number}" for number in range(8)))
        await asyncio.sleep(1.5)
        assert len(bench.sink.sent) == 8
        assert (await bench.dead(), await bench.pending()) == (LOST, 8 - LOST)


async def test_a_success_of_before_the_fifth_refusal_does_not_open_the_sink(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, sink=refusing(), concurrency=8) as bench:
        bench.sink.reply(2.0, to="slow")
        await bench.accept("slow", *(f"e{number}" for number in range(20)))
        await asyncio.sleep(10)
        assert (await bench.dead(), await bench.pending()) == (LOST, 20 - LOST)
        assert bench.dispatcher.status().state == "parked"


@pytest.mark.parametrize("batches", [False, True], ids=["alone", "in_batches"])
@pytest.mark.parametrize("count", [8, 120, 1000])
async def test_good_events_among_and_behind_refused_ones_are_delivered_soon(
    tmp_path: Path, count: int, batches: bool
) -> None:
    sink = choosy(REFUSED, batches=batches)
    async with working(tmp_path, sink=sink, concurrency=4) as bench:
        half = count // 2
        await bench.accept(*bad(half), "among", *bad(count - half, start=half), "behind")
        await delivered(bench, "among", "behind", within_s=SOON_S)


async def test_refused_events_die_once_others_were_taken(tmp_path: Path) -> None:
    async with working(tmp_path, sink=choosy(REFUSED), concurrency=4) as bench:
        await bench.accept(*bad(120))
        await asyncio.sleep(HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (LOST, 120 - LOST)
        await bench.accept("good")
        await bench.settled(within_s=10 * PROBE_MAX_S)
        assert await bench.dead() == 120
        assert bench.dispatcher.status().state == "active"
        assert row(bench, "bad0100")[:2] == ("dead", REFUSED.reason)


async def test_good_events_do_not_wait_for_refused_ones_that_are_tried_again(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, sink=choosy(REFUSED)) as bench:
        await bench.accept(*bad(120))
        await asyncio.sleep(HOUR_S)
        for number in range(15):
            began_s = now_s()
            await bench.accept(f"good{number}")
            await delivered(bench, f"good{number}", within_s=PROBE_MAX_S + 1)
            assert number == 0 or waited_s(bench, f"good{number}", began_s) <= 0.1
            await asyncio.sleep(7.7)


async def test_four_more_die_after_each_success(tmp_path: Path) -> None:
    async with working(tmp_path, sink=refusing()) as bench:
        for round_ in range(3):
            await bench.accept(*(f"r{round_}e{number}" for number in range(4)))
            await asyncio.sleep(1)
            bench.sink.reply(WELL, to=f"good{round_}")
            await bench.accept(f"good{round_}")
            await asyncio.sleep(1)
            assert (await bench.dead(), await bench.pending()) == (4 * (round_ + 1), 0)
            assert bench.dispatcher.status().state == "active"


async def test_failures_between_refusals_do_not_make_more_of_them_die(tmp_path: Path) -> None:
    async with working(tmp_path, sink=refusing()) as bench:
        for number in range(12):
            bench.sink.reply(Temporary("500", about_event=True), to=f"e{number}")
            await bench.accept(f"e{number}")
            await asyncio.sleep(90)
        assert (await bench.dead(), await bench.pending()) == (LOST, 12 - LOST)
        assert bench.dispatcher.status().state == "parked"


async def test_give_up_after_bounds_what_is_refused(tmp_path: Path) -> None:
    retry = policy(give_up_after="2h")
    async with working(tmp_path, sink=refusing(), retry=retry) as bench:
        await bench.accept(*(f"e{number}" for number in range(10)))
        await asyncio.sleep(1.8 * HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (LOST, 10 - LOST)
        await asyncio.sleep(HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (10, 0)
        status, reason, attempts, tries = row(bench, "e9")
        assert (status, reason) == ("dead", f"gave up: it refuses every event: {REFUSED.reason}")
        # The first one, which starts the time, and the last one.
        assert attempts == 2
        assert tries > 5


async def test_a_parked_head_holds_its_key_and_no_other(tmp_path: Path) -> None:
    async with working(tmp_path, sink=choosy(REFUSED), concurrency=4) as bench:

        async def arrive(name: str, key: str) -> None:
            event = lead(name, received_ms=bench.clock.now_ms())
            wake = bench.dispatcher.wake
            await bench.store.accept(event, (Verdict(SINK, "takes", "", key),), lambda _: wake())

        for name in bad(LOST + 2):
            await arrive(name, name)
        await asyncio.sleep(5)
        head = bad(LOST + 2)[-1]
        assert row(bench, head)[0] == "pending"
        await arrive("behind", head)
        await asyncio.sleep(HOUR_S)
        assert "behind" not in bench.sink.ids
        await arrive("other", "its own")
        await delivered(bench, "other", within_s=SOON_S + PROBE_MAX_S)
        await delivered(bench, "behind", within_s=SOON_S + PROBE_MAX_S)
        assert row(bench, head)[0] == "dead"


async def test_a_sink_that_refused_everything_before_a_restart_loses_nothing_more(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, sink=refusing()) as bench:
        await bench.accept(*(f"e{number}" for number in range(20)))
        await asyncio.sleep(60)
        assert await bench.dead() == LOST
    async with working(tmp_path, sink=refusing(), started=False) as bench:
        bench.dispatcher.distrust()
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (LOST, 20 - LOST)
        assert bench.dispatcher.status().state == "parked"
        await takes_everything_again(bench)
        bench.dispatcher.cut_off()
        await running
