"""New events go to their dispatcher in memory, and arrive once and in their turn all the same."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import Delivery, SinkResponse
from relay.core.errors import Misconfigured, StoreFull
from relay.delivery.circuit_breaker import UNSETTLED_PER_SLOT
from relay.delivery.dispatcher import POLL_INTERVAL_S
from relay.delivery.prefetch import FETCH_MIN, PrefetchBuffer
from relay.delivery.settlement_writer import STORE_RETRY_S
from tests.delivery.dispatching import DOWN, HOUR_S, SINK, lead, now_s, policy, rate, working
from tests.store.erasing import erase
from tests.stub_server import until


def delivery_of(event_id: str) -> Delivery:
    event = lead(event_id, received_ms=0)
    return Delivery(seq=1, sink=SINK, event=event, attempts=0, first_attempt_ms=None)


def _nothing() -> None:
    pass


async def test_a_new_event_is_sent_at_once_and_without_a_fetch(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(7.3)
        leases = bench.store.leases
        for number in range(20):
            await bench.hand_over(f"e{number}")
            await asyncio.sleep(0.1)
        assert bench.sink.times == pytest.approx([7.3 + number / 10 for number in range(20)])
        assert bench.store.leases == leases
        assert (await bench.pending(), bench.store.held) == (0, set())


async def test_an_event_without_credit_is_sent_once_no_requests_wait(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        with bench.busy():
            # Requests are answered, but too few to earn a delivery.
            bench.acknowledge(1)
            await bench.hand_over("e1")
            await asyncio.sleep(0)
            assert bench.sink.ids == []
        await asyncio.sleep(1)
        assert bench.sink.ids == ["e1"]


async def test_events_of_one_commit_are_sent_together(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=8) as bench:
        bench.sink.always = 1.0
        await asyncio.sleep(1)
        await bench.hand_over(*(f"e{number}" for number in range(8)))
        await asyncio.sleep(0.1)
        assert bench.sink.in_flight == 8


async def test_an_event_that_comes_during_a_fetch_is_sent_once(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)

        async def arrive() -> None:
            await bench.hand_over("late")

        bench.store.meanwhile = arrive
        bench.dispatcher.wake()
        await asyncio.sleep(POLL_INTERVAL_S + 1)
        assert bench.sink.sent == [(1, "late")]


async def test_an_event_that_comes_during_a_fetch_needs_no_other(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)

        async def arrive() -> None:
            await bench.hand_over("b", "c")

        await bench.accept("a", wake=False)
        leases = bench.store.leases
        bench.store.meanwhile = arrive
        bench.dispatcher.wake()
        await asyncio.sleep(1)
        assert bench.sink.ids == ["a", "b", "c"]
        assert bench.store.leases == leases + 1


async def test_an_event_that_comes_during_a_fetch_waits_for_older_ones(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)

        async def arrive() -> None:
            await bench.hand_over("new")

        old = [f"old{number:02}" for number in range(3 * FETCH_MIN)]
        await bench.accept(*old, wake=False)
        bench.store.meanwhile = arrive
        bench.dispatcher.wake()
        await bench.settled()
        assert bench.sink.ids == [*old, "new"]
        assert bench.store.held == set()


async def test_an_event_that_comes_during_a_fetch_that_fails_is_fetched(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)

        async def fail() -> None:
            await bench.hand_over("a")
            assert len(bench.store.held) == 1
            raise StoreFull("no room")

        bench.store.meanwhile = fail
        bench.dispatcher.wake()
        await asyncio.sleep(0.1)
        assert (bench.sink.ids, bench.store.held) == ([], set())
        await asyncio.sleep(STORE_RETRY_S)
        assert bench.sink.times == pytest.approx([1 + STORE_RETRY_S], abs=0.01)


async def test_events_beyond_the_buffer_keep_their_order(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=2) as bench:
        bench.sink.always = 0.05
        names = [f"e{number:03}" for number in range(300)]
        for name in names:
            await bench.hand_over(name)
            await asyncio.sleep(0.001)
        await bench.settled()
        assert bench.sink.ids == names
        assert bench.store.most_held <= FETCH_MIN + (3 + UNSETTLED_PER_SLOT) * 2


async def test_an_older_event_that_waits_in_the_store_goes_first(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        bench.dispatcher.pause()
        await bench.hand_over("old")
        bench.dispatcher.resume()
        await bench.hand_over("new")
        await asyncio.sleep(0.1)
        assert bench.sink.ids == ["old", "new"]


async def test_a_retry_is_not_held_up_by_a_stream_of_new_events(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="2s")) as bench:
        await asyncio.sleep(1)
        bench.sink.reply(DOWN, to="a")
        bench.sink.always = 0.02
        await bench.hand_over("a")
        for number in range(300):
            await bench.hand_over(f"e{number}")
            await asyncio.sleep(0.01)
        times = [at_s for at_s, name in bench.sink.sent if name == "a"]
        assert times == pytest.approx([1, 3], abs=0.2)
        await bench.settled()


async def test_a_paused_sink_is_handed_nothing(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        bench.dispatcher.pause()
        await bench.hand_over("a")
        assert bench.store.held == set()
        await asyncio.sleep(HOUR_S)
        bench.dispatcher.resume()
        await asyncio.sleep(1)
        assert bench.sink.sent == [(1 + HOUR_S, "a")]


async def test_a_pause_releases_what_was_handed_over(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        bench.sink.always = 5.0
        await bench.hand_over("a", "b", "c")
        await asyncio.sleep(1)
        assert len(bench.store.held) == 3
        bench.dispatcher.pause()
        assert len(bench.store.held) == 1
        bench.dispatcher.resume()
        await bench.settled()
        assert bench.sink.ids == ["a", "b", "c"]


async def test_a_parked_sink_is_handed_nothing_and_recovers_by_a_probe(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        bench.sink.always = Misconfigured("401 Unauthorized", status=401)
        await bench.hand_over("a")
        await asyncio.sleep(0.1)
        await bench.hand_over("b")
        assert not bench.dispatcher.offer(delivery_of("x"))
        bench.sink.always = SinkResponse(200, "ok")
        await bench.settled(within_s=HOUR_S)
        assert sorted(name for _, name in bench.sink.done) == ["a", "b"]


async def test_the_rate_is_kept(tmp_path: Path) -> None:
    async with working(tmp_path, rate=rate("2/s"), concurrency=5) as bench:
        await asyncio.sleep(1)
        for number in range(10):
            await bench.hand_over(f"e{number}")
        await asyncio.sleep(60)
        expected = [1 + number / 2 for number in range(10)]
        assert bench.sink.times == pytest.approx(expected, abs=0.002)


async def test_an_inactive_dispatcher_takes_no_offer(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        await bench.hand_over("before")
        assert bench.store.held == set()
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(1)
        bench.sink.always = 3.0
        await bench.hand_over("a", "b")
        await asyncio.sleep(1)
        draining = asyncio.create_task(bench.dispatcher.drain(Duration.parse("10s")))
        await asyncio.sleep(0)
        await bench.hand_over("late")
        await draining
        await running
        assert bench.sink.ids == ["before", "a"]
        assert (await bench.pending(), bench.store.held) == (2, set())


async def test_a_drain_does_not_wait_to_gather_results(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(1)
        await bench.hand_over("a")
        await until(lambda: len(bench.sink.done) == 1, what="the send")
        at_s = now_s()
        await bench.dispatcher.drain(Duration.parse("10s"))
        await running
        assert (await bench.pending(), now_s()) == (0, at_s)


async def test_an_erased_event_is_not_sent_from_the_buffer(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        erased = asyncio.Event()

        async def late() -> SinkResponse:
            await erased.wait()
            return SinkResponse(200)

        bench.sink.reply(late, to="a")
        await bench.hand_over("a", "b", "c")
        await asyncio.sleep(0.1)
        email = lead("any", received_ms=0).person()
        assert email is not None
        await erase(bench.store, email, now_ms=bench.clock.now_ms())
        bench.dispatcher.refetch()
        erased.set()
        await asyncio.sleep(POLL_INTERVAL_S)
        assert bench.sink.ids == ["a"]
        assert bench.store.held == set()


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(4))
async def test_everything_arrives_once_while_hand_overs_fetches_and_pauses_cross(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)

    async def randomly_failing() -> SinkResponse:
        await asyncio.sleep(random.choice([0, 0.001, 0.3]))
        if random.random() < 0.1:
            raise DOWN
        return SinkResponse(200, "ok")

    retry = policy(first="1s", max="5s")
    async with working(tmp_path, concurrency=random.choice([1, 3, 16]), retry=retry) as bench:
        bench.sink.always = randomly_failing
        names = [f"e{number:03}" for number in range(300)]
        waiting = list(names)
        while waiting:
            count = random.randrange(1, 9)
            together, waiting = waiting[:count], waiting[count:]
            accept = random.choice([bench.hand_over, bench.hand_over, bench.accept])
            await accept(*together)
            random.choice([bench.dispatcher.wake, _nothing, _nothing])()
            if random.random() < 0.1:
                random.choice([bench.dispatcher.refetch, bench.dispatcher.pause])()
                await asyncio.sleep(random.uniform(0, 0.1))
                bench.dispatcher.resume()
            await asyncio.sleep(random.choice([0, 0.002, 0.05]))
        await bench.settled(within_s=HOUR_S)
        assert sorted(name for _, name in bench.sink.done) == names
        assert bench.store.held == set()


def test_a_buffer_that_is_full_takes_no_more() -> None:
    buffer = PrefetchBuffer(1)
    taken = 0
    while buffer.has_room(1):
        buffer.add([delivery_of(f"e{taken}")])
        taken += 1
    assert taken == 2 + FETCH_MIN
