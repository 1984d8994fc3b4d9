"""A dispatcher of an ordered sink: one event of a key at a time, and others beside it."""

import asyncio
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused
from relay.core.routing import Verdict
from relay.store.replays import PlannedDelivery
from relay.store.selection import Selection
from tests.conftest import NOW_MS
from tests.delivery.dispatching import (
    DOWN,
    HOUR_S,
    SINK,
    Bench,
    lead,
    policy,
    working,
)


async def arrive(bench: Bench, *names: str) -> None:
    """Accept events; the first letter of an id is its key, `-` means none."""
    wake = bench.dispatcher.wake
    for name in names:
        key = None if name[0] == "-" else f"video {name[0]}"
        event = lead(name, received_ms=bench.clock.now_ms())
        verdict = Verdict(SINK, "takes", "", key)
        await bench.store.accept(event, (verdict,), lambda _: wake())


def seconds(bench: Bench) -> list[tuple[int, str]]:
    """Times are rounded, because the store gathers new events for up to 8 ms."""
    return [(round(at_s), name) for at_s, name in bench.sink.sent]


async def test_one_event_per_key_is_in_flight_beside_those_of_other_keys(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=8) as bench:
        bench.sink.always = 1.0
        await arrive(bench, "a1", "a2", "a3", "b1", "b2", "c1", "-1", "-2")
        await asyncio.sleep(10)
        assert sorted(seconds(bench)) == [
            *((0, name) for name in ("-1", "-2", "a1", "b1", "c1")),
            *((1, name) for name in ("a2", "b2")),
            (2, "a3"),
        ]


async def test_the_next_event_of_a_key_follows_at_once(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        await arrive(bench, *(f"a{number:03}" for number in range(100)))
        await asyncio.sleep(0.1)
        assert bench.sink.ids == [f"a{number:03}" for number in range(100)]
        assert bench.sink.times == [0] * 100


async def test_an_idle_dispatcher_of_an_ordered_sink_leaves_the_store_alone(tmp_path: Path) -> None:
    retry = policy(first="1h", factor=1.0)
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        bench.sink.reply(DOWN, to="a1")
        await arrive(bench, "a1", *(f"a{number}" for number in range(2, 60)))
        await asyncio.sleep(10)
        looks = bench.store.leases
        await asyncio.sleep(HOUR_S / 2)
        assert bench.store.leases - looks <= HOUR_S / 2 / 30 + 1


async def test_a_failing_event_delays_its_key_and_no_other(tmp_path: Path) -> None:
    retry = policy(first="10s", factor=1.0)
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        bench.sink.reply(DOWN, DOWN, to="a1")
        await arrive(bench, "a1", "a2", "b1", "b2")
        await asyncio.sleep(15)
        await arrive(bench, "a3", "b3")
        await asyncio.sleep(60)
        assert [sent for sent in seconds(bench) if sent[1][0] == "a"] == [
            *((0, "a1"), (10, "a1"), (20, "a1")),
            *((20, "a2"), (20, "a3")),
        ]
        assert [sent for sent in seconds(bench) if sent[1][0] == "b"] == [
            *((0, "b1"), (0, "b2"), (15, "b3")),
        ]


async def test_a_refused_event_releases_the_next_at_once(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        bench.sink.reply(Refused("400"), to="a1")
        await arrive(bench, "a1", "a2")
        await asyncio.sleep(1)
        assert seconds(bench) == [(0, "a1"), (0, "a2")]
        assert await bench.dead() == 1


async def test_an_event_that_always_fails_becomes_a_dead_letter_and_releases_the_next(
    tmp_path: Path,
) -> None:
    retry = policy(first="1m", factor=1.0, give_up_after="3m")
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        bench.sink.reply(*[DOWN] * 4, to="a1")
        await arrive(bench, "a1", "a2", "b1")
        await asyncio.sleep(HOUR_S)
        assert seconds(bench) == [
            *((0, "a1"), (0, "b1")),
            *((60, "a1"), (120, "a1"), (180, "a1")),
            (180, "a2"),
        ]
        assert (await bench.dead(), await bench.pending()) == (1, 0)


async def test_each_waiting_event_has_its_own_attempts(tmp_path: Path) -> None:
    retry = policy(first="1m", factor=1.0, give_up_after="2m")
    async with working(tmp_path, concurrency=4, retry=retry) as bench:
        bench.sink.reply(DOWN, DOWN, DOWN, to="a1")
        bench.sink.reply(DOWN, DOWN, to="a2")
        await arrive(bench, "a1", "a2")
        await asyncio.sleep(HOUR_S)
        assert [at_s for at_s, name in seconds(bench) if name == "a2"] == [120, 180, 240]
        assert await bench.dead() == 1


async def test_a_parked_sink_resumes_in_order(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        bench.sink.reply(Misconfigured("404"), Misconfigured("404"))
        await arrive(bench, "a1", "a2", "a3")
        await bench.settled(within_s=HOUR_S)
        assert [name for name, _ in groupby(bench.sink.ids)] == ["a1", "a2", "a3"]


async def test_a_pause_between_two_events_of_a_key_keeps_their_order(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        bench.sink.always = 1.0
        await arrive(bench, "a1", "a2", "b1")
        await asyncio.sleep(0.5)
        bench.dispatcher.pause()
        await asyncio.sleep(10)
        await arrive(bench, "a3")
        assert sorted(bench.sink.ids) == ["a1", "b1"]
        bench.dispatcher.resume()
        await bench.settled(within_s=HOUR_S)
        assert bench.sink.ids[2:] == ["a2", "a3"]


async def test_a_replay_is_sent_in_order(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=8) as bench:
        names = [f"{key}{number}" for number in range(9) for key in "ab"]
        await arrive(bench, *names)
        await bench.settled(within_s=HOUR_S)
        bench.sink.sent.clear()
        bench.sink.reply(DOWN, to="a4")
        until = await bench.store.events.newest()
        begun = await bench.store.replays.begin(Selection(), total=18, until=until, now_ms=NOW_MS)
        wanted = [
            PlannedDelivery(seq, SINK, f"video {name[0]}") for seq, name in enumerate(names, 1)
        ]
        await bench.store.replays.open(begun, wanted, cursor=18, now_ms=bench.clock.now_ms())
        bench.dispatcher.wake()
        await bench.settled(within_s=HOUR_S)
        for key in "ab":
            sent = [name for _, name in bench.sink.sent if name[0] == key]
            assert [name for name, _ in groupby(sent)] == [f"{key}{number}" for number in range(9)]


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(5))
async def test_each_key_arrives_in_order_however_the_destination_fails(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)

    async def randomly_failing() -> SinkResponse:
        await asyncio.sleep(random.uniform(0, 3))
        if random.random() < 0.3:
            raise DOWN if random.random() < 0.9 else Refused("400")
        return SinkResponse(200, "ok")

    retry = policy(first="1s", max="1m", give_up_after="5m")
    async with working(tmp_path, concurrency=8, retry=retry) as bench:
        bench.sink.always = randomly_failing
        names = [f"{random.choice('abcde-')}{number:03}" for number in range(200)]
        for start in range(0, 200, 10):
            await arrive(bench, *names[start : start + 10])
            await asyncio.sleep(random.uniform(0, 5))
        await bench.settled(within_s=HOUR_S)
        assert bench.sink.most_in_flight > 4
        for key in "abcde":
            begun = [name for name, _ in groupby(n for n in bench.sink.ids if n[0] == key)]
            assert begun == [name for name in names if name[0] == key]
