"""Events that a destination rejects neither delay others for long nor stay forever."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.retry import FAILURE_THRESHOLD, SUSPECT_MIN_AGE_MS, SUSPECT_MIN_TRIES
from relay.core.routing import Verdict
from relay.delivery.circuit_breaker import PROBE_MAX_S
from tests.delivery.dispatching import (
    HOUR_S,
    SINK,
    Bench,
    Reply,
    ScriptedBatches,
    ScriptedSink,
    lead,
    now_s,
    policy,
    working,
)

pytestmark = pytest.mark.servers

FORBIDDEN = Misconfigured("403: our credentials do not permit this", status=403, about_event=True)
FAULT = Temporary("500: the destination has a fault", status=500, about_event=True)
REFUSED = Refused("400: the destination refuses this event", status=400, about_event=True)
RESET = Temporary("connection reset", about_event=True)

SOON_S = 15.0
"""Longest wait of a good event behind any of these numbers of bad ones."""


class Choosy(ScriptedSink):
    """Rejects events whose ids begin with `bad`."""

    dislike: Reply = FORBIDDEN

    def _reply_for(self, event_id: str) -> Reply:
        return self.dislike if event_id.startswith("bad") else super()._reply_for(event_id)


class ChoosyBatches(Choosy, ScriptedBatches):
    """The same, in batches."""


def choosy(error: SinkError, *, batches: bool = False) -> Choosy:
    sink = ChoosyBatches() if batches else Choosy()
    sink.dislike = error
    return sink


def bad(count: int, *, start: int = 0) -> list[str]:
    return [f"bad{number:04}" for number in range(start, start + count)]


def waited_s(bench: Bench, event_id: str, since_s: float) -> float:
    """Seconds until the event was delivered."""
    return next(at_s for at_s, name in bench.sink.done if name == event_id) - since_s


async def delivered(bench: Bench, *ids: str, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not set(ids) <= {name for _, name in bench.sink.done}:
            await asyncio.sleep(0.1)


def row(bench: Bench, event_id: str) -> tuple[Any, ...]:
    with closing(sqlite3.connect(bench.file)) as db, db:
        found = db.execute(
            "SELECT d.status, d.reason, d.attempts, d.tries FROM deliveries d "
            "JOIN events e ON e.seq = d.event WHERE e.id = ?",
            (event_id,),
        ).fetchone()
    db.close()
    return tuple(found)


@pytest.mark.parametrize("batches", [False, True], ids=["alone", "in_batches"])
@pytest.mark.parametrize(
    ("error", "count", "concurrency"),
    [
        *((FORBIDDEN, 8, 1), (FORBIDDEN, 120, 1), (FORBIDDEN, 120, 8)),
        *((FAULT, 120, 1), (FAULT, 1000, 1), (RESET, 8, 1), (RESET, 120, 8)),
    ],
    ids=lambda value: getattr(value, "reason", None),
)
async def test_good_events_among_and_behind_bad_ones_are_delivered_soon(
    tmp_path: Path, error: SinkError, count: int, concurrency: int, batches: bool
) -> None:
    sink = choosy(error, batches=batches)
    async with working(tmp_path, sink=sink, concurrency=concurrency) as bench:
        half = count // 2
        await bench.accept(*bad(half), "among", *bad(count - half, start=half), "behind")
        await delivered(bench, "among", "behind", within_s=SOON_S)


@pytest.mark.parametrize("error", [FORBIDDEN, FAULT], ids=["403", "500"])
async def test_good_events_do_not_wait_for_bad_ones_that_are_retried(
    tmp_path: Path, error: SinkError
) -> None:
    async def dislike() -> SinkResponse:
        await asyncio.sleep(0.05)
        raise error

    sink = choosy(error)
    sink.dislike = dislike
    async with working(tmp_path, sink=sink) as bench:
        await bench.accept(*bad(120), "behind")
        await delivered(bench, "behind", within_s=SOON_S)
        for number in range(15):
            await asyncio.sleep(7.7)
            began_s = now_s()
            await bench.accept(f"good{number}")
            await delivered(bench, f"good{number}", within_s=1)
            # One that was being tried, and a second that had its turn.
            assert waited_s(bench, f"good{number}", began_s) <= 0.1


@pytest.mark.parametrize("error", [FORBIDDEN, REFUSED])
async def test_a_stream_of_bad_events_does_not_pile_up_good_ones(
    tmp_path: Path, error: SinkError
) -> None:
    async with working(tmp_path, sink=choosy(error)) as bench:
        for second in range(40):
            await bench.accept(*bad(40, start=40 * second), f"good{second}")
            await asyncio.sleep(1)
        began_s = now_s()
        await delivered(bench, *(f"good{second}" for second in range(40)), within_s=SOON_S)
        assert now_s() - began_s < SOON_S


async def test_events_survive_revoked_credentials_after_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as bench:
        bench.clock.set_by_ms = 7 * 86_400_000
        await bench.accept("before")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = 0
        await asyncio.sleep(60)
        bench.sink.always = FORBIDDEN
        await bench.accept("a", "b", "c")
        await asyncio.sleep(4 * HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (0, 3)


async def test_one_bad_event_leaves_its_sink_active(tmp_path: Path) -> None:
    async with working(tmp_path, sink=choosy(FORBIDDEN)) as bench:
        await bench.accept("good")
        await asyncio.sleep(1)
        await bench.accept("bad")
        await asyncio.sleep(HOUR_S)
        assert bench.sample('relay_sink_state{sink="sales",state="active"}') == 1
        assert row(bench, "bad")[0] == "pending"


async def test_a_forbidden_event_is_dead_after_a_quarter_of_an_hour_if_others_succeed(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, sink=choosy(FORBIDDEN)) as bench:
        await bench.accept(*bad(3), "good")
        for second in range(0, SUSPECT_MIN_AGE_MS // 1000, 3):
            await asyncio.sleep(3)
            await bench.accept(f"good{second}")
            assert await bench.dead() == 0
        await asyncio.sleep(1)
        for number in range(4 * 60):
            await asyncio.sleep(1)
            await bench.accept(f"more{number}")
        await asyncio.sleep(1)
        status, reason, attempts, _ = row(bench, "bad0000")
        assert (status, reason) == ("dead", f"gave up, others are taken: {FORBIDDEN.reason}")
        assert attempts >= SUSPECT_MIN_TRIES
        assert (await bench.dead(), await bench.pending()) == (3, 0)


async def test_a_forbidden_event_stays_pending_while_nothing_else_comes(tmp_path: Path) -> None:
    async with working(tmp_path, sink=choosy(FORBIDDEN)) as bench:
        await bench.accept("good", *bad(8), "behind")
        await asyncio.sleep(8 * HOUR_S)
        assert (await bench.dead(), await bench.pending()) == (0, 8)
        # However long it waited, the sink is tried within a minute of its repair.
        bench.sink.__class__ = ScriptedSink
        await asyncio.sleep(PROBE_MAX_S + 1)
        await bench.settled(within_s=1)


async def test_a_sink_that_takes_nothing_keeps_its_backlog(tmp_path: Path) -> None:
    retry = policy(give_up_after="2h")
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        await bench.accept("before")
        await asyncio.sleep(1)
        bench.sink.always = FORBIDDEN
        for number in range(20):
            await bench.accept(f"e{number}")
            await asyncio.sleep(HOUR_S / 2)
        assert bench.sample('relay_sink_state{sink="sales",state="parked"}') == 1
        assert (await bench.dead(), await bench.pending()) == (0, 20)
        bench.sink.always = SinkResponse(200, "ok")
        await asyncio.sleep(PROBE_MAX_S + 1)
        assert await bench.pending() == 0


class OneInTwo(ScriptedSink):
    """Two replicas behind a balancer, one of which is misconfigured."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def _reply_for(self, event_id: str) -> Reply:
        return FORBIDDEN if self._random.random() < 0.5 else self.always


@pytest.mark.parametrize(("seed", "concurrency"), [(1, 1), (2, 8), (3, 8)])
async def test_one_misconfigured_replica_of_two_loses_no_leads(
    tmp_path: Path, seed: int, concurrency: int
) -> None:
    sink = OneInTwo(Random(seed))
    async with working(tmp_path, sink=sink, concurrency=concurrency) as bench:
        for number in range(150):
            await bench.accept(f"lead{number}")
            await asyncio.sleep(2)
        await bench.settled(within_s=HOUR_S)
        assert await bench.dead() == 0
        assert len({name for _, name in sink.done}) == 150


@pytest.mark.parametrize("count", [1, 8, 120])
async def test_bad_events_are_given_up_in_time_while_good_ones_flow(
    tmp_path: Path, count: int
) -> None:
    retry = policy(give_up_after="5s")
    async with working(tmp_path, sink=choosy(FAULT), retry=retry) as bench:
        await bench.accept("first", *bad(count))
        for second in range(60):
            await asyncio.sleep(1)
            await bench.accept(f"good{second}")
        await asyncio.sleep(1)
        assert (await bench.dead(), await bench.pending()) == (count, 0)
        assert row(bench, "bad0000")[1] == f"gave up: {FAULT.reason}"


@pytest.mark.parametrize(
    "error", [FAULT, Temporary("connection refused")], ids=["500", "unreachable"]
)
async def test_an_outage_dead_letters_only_events_tried_before_it_was_detected(
    tmp_path: Path, error: SinkError
) -> None:
    retry = policy(give_up_after="1h")
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        bench.sink.always = error
        await bench.accept(*(f"e{number}" for number in range(300)))
        for number in range(300, 600):
            await bench.accept(f"e{number}")
            await asyncio.sleep(60)
        assert await bench.dead() <= FAILURE_THRESHOLD + 4
        bench.sink.always = SinkResponse(200, "ok")
        await bench.settled(within_s=10 * PROBE_MAX_S)
        assert await bench.dead() <= FAILURE_THRESHOLD + 4


async def test_a_bad_event_delays_its_key_and_no_other(tmp_path: Path) -> None:
    async with working(tmp_path, sink=choosy(FORBIDDEN), concurrency=4) as bench:

        async def arrive(name: str, key: str) -> None:
            event = lead(name, received_ms=bench.clock.now_ms())
            wake = bench.dispatcher.wake
            await bench.store.accept(event, (Verdict(SINK, "takes", "", key),), lambda _: wake())

        await arrive("bad", "a")
        await arrive("behind", "a")
        for number in range(10 * 60):
            await arrive(f"other{number}", f"b{number}")
            await asyncio.sleep(3)
            if 3 * number < SUSPECT_MIN_AGE_MS // 1000:
                assert "behind" not in bench.sink.ids
        assert {"behind", "other0", "other599"} <= {name for _, name in bench.sink.done}
        assert row(bench, "bad")[0] == "dead"


async def test_untried_events_go_before_retries_also_after_a_restart(tmp_path: Path) -> None:
    sink = choosy(FORBIDDEN)
    async with working(tmp_path, sink=sink) as bench:
        await bench.accept("good", *bad(120))
        await asyncio.sleep(60)
    sink.sent.clear()
    sink.done.clear()
    async with working(tmp_path, sink=sink, started=False) as bench:
        await bench.accept("later", wake=False)
        running = asyncio.create_task(bench.dispatcher.run())
        await delivered(bench, "later", within_s=SOON_S)
        assert sink.ids[0] == "later"
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running
