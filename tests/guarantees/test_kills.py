"""Nothing that was answered 2xx is lost by `kill -9`, and next to nothing is sent twice."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from relay.core.event import KINDS, LEAD_CAPTURED, WEBHOOK_TEST
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import FAILING, HANGING, WELL, Destination, Key, Mood
from tests.guarantees.ledger import Ledger, Place
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import Posted, Traffic

KILLS = 15
CONNECTIONS = 8
CONCURRENCY = 4
TIME_SCALE = 0.02
"""The sender's waits are then 0.4, 0.8, 1.6, 3.2 and 6.4 s, and a restart falls into them."""

SHORT = Mood(delay_s=0.005)
"""Long enough that a kill finds deliveries on their way."""

ALL = frozenset(KINDS) - {WEBHOOK_TEST}
TAKES = {
    "steady": ALL | {WEBHOOK_TEST},
    "flaky_a": ALL,
    "flaky_b": ALL,
    "flaky_c": ALL,
    "leads": frozenset({LEAD_CAPTURED}),
    "impatient": ALL,
}
"""What each sink is to get, in the test's own words; its TOML stands in `_SETTINGS`."""

_SETTINGS = {
    "steady": 'events = ["*", "webhook.test"]',
    "leads": 'events = ["lead.captured"]',
    "impatient": 'retry = { first = "50ms", max = "200ms", give_up_after = "400ms" }',
}
_FLAKY = 'retry = { first = "50ms", max = "500ms" }'
_TURNS = (WELL, FAILING, HANGING)


@dataclass
class Books:
    """What was seen at the kills, from which every duplicate must be explained."""

    kills: int = 0
    in_flight: Counter[Place] = field(default_factory=Counter)


async def test_kill_9_loses_nothing_and_repeats_only_what_was_in_flight(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with AsyncExitStack() as stack:
        destinations = [await stack.enter_async_context(Destination(name, SHORT)) for name in TAKES]
        relay = await stack.enter_async_context(Relay(tmp_path, sinks=_sinks(destinations)))
        traffic = await stack.enter_async_context(
            Traffic(relay.url, time_scale=TIME_SCALE, random=random)
        )
        books = Books()
        await _live_through_kills(relay, destinations, traffic, books=books, random=random)
        for destination in destinations:
            destination.mood = WELL
        await until(lambda: not ledger.pending(relay.store), what="the end of the backlog")
        assert await relay.stop() == 0, relay.output()
    end = ledger.read(relay.store)
    taken = {destination.name: destination.taken for destination in destinations}
    _prove_nothing_is_lost(end, traffic, taken)
    _prove_nothing_is_invented(destinations, traffic.posted)
    _prove_duplicates_were_in_flight(end, taken, books)
    say(_summary(traffic, end, taken, books))


async def _live_through_kills(
    relay: Relay,
    destinations: Sequence[Destination],
    traffic: Traffic,
    *,
    books: Books,
    random: Random,
) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(traffic.flow(stop, pause_s=0.05))
        turning = tasks.create_task(_turn(destinations))
        while books.kills < KILLS:
            begun = {destination.name: len(destination.arrivals) for destination in destinations}
            await relay.spawn()
            if random.random() < 0.8:
                await until(relay.is_ready, what="/readyz after a kill")
            await asyncio.sleep(random.uniform(0, 1.6))
            await _kill(relay, destinations, begun=begun, books=books)
        await relay.start()
        stop.set()
        turning.cancel()


async def _turn(destinations: Sequence[Destination]) -> None:
    """Let three destinations fail, hang and recover in turn; the impatient one fails at times."""
    flaky = [destination for destination in destinations if destination.name.startswith("flaky")]
    impatient = next(destination for destination in destinations if destination.name == "impatient")
    for turn in range(1_000_000):
        for number, destination in enumerate(flaky):
            destination.mood = _TURNS[(turn + number) % len(_TURNS)]
        impatient.mood = (SHORT, FAILING)[turn % 2]
        await asyncio.sleep(1.7)


async def _kill(
    relay: Relay, destinations: Sequence[Destination], *, begun: dict[str, int], books: Books
) -> None:
    """Kill the relay, and write down which deliveries were in flight at that moment.

    They are those that had reached a destination and were not answered yet, those that it still
    found in its socket afterwards, and those that it had answered 2xx without the store knowing.
    """
    open_ = {(peer.name, each.key) for peer in destinations for each in peer.open()}
    before = {destination.name: len(destination.arrivals) for destination in destinations}
    await relay.kill()
    await until(
        lambda: not any(peer.connections for peer in destinations), what="hung-up connections"
    )
    books.kills += 1
    late = {
        (peer.name, each.key)
        for peer in destinations
        for each in peer.arrivals[before[peer.name] :]
    }
    answered = {
        (peer.name, each.key)
        for peer in destinations
        for each in peer.arrivals[begun[peer.name] :]
        if each.status == WELL.status
    }
    unsettled = ledger.read(relay.store).places("pending") if answered else set()
    books.in_flight.update(open_ | late | (answered & unsettled))


def _prove_nothing_is_lost(end: Ledger, traffic: Traffic, taken: dict[str, Counter[Key]]) -> None:
    dead = end.places("dead")
    lost = [
        (sink, key)
        for key in traffic.acknowledged
        for sink, kinds in TAKES.items()
        if traffic.posted[key].kind in kinds and key not in taken[sink] and (sink, key) not in dead
    ]
    assert lost == []
    assert traffic.acknowledged <= end.events
    assert end.places("pending") == set()
    assert end.integrity == "ok"
    assert {sink for sink, _ in dead} == {"impatient"}


def _prove_nothing_is_invented(
    destinations: Sequence[Destination], posted: dict[Key, Posted]
) -> None:
    for destination in destinations:
        for arrival in destination.arrivals:
            assert arrival.key in posted
            assert arrival.body == posted[arrival.key].body
            assert arrival.kind in TAKES[destination.name]


def _prove_duplicates_were_in_flight(
    end: Ledger, taken: dict[str, Counter[Key]], books: Books
) -> None:
    """What was sent twice was cut off by a kill, or was answered after the relay's timeout."""
    assert books.in_flight.total() <= KILLS * CONCURRENCY * len(TAKES)
    unexplained = {
        (sink, key): times
        for sink, keys in taken.items()
        for key, times in keys.items()
        if times - 1 > books.in_flight[sink, key] + end.unanswered[sink, key]
    }
    assert unexplained == {}


def _summary(traffic: Traffic, end: Ledger, taken: dict[str, Counter[Key]], books: Books) -> str:
    deliveries = sum(len(keys) for keys in taken.values())
    duplicates = sum(keys.total() - len(keys) for keys in taken.values())
    return (
        f"{books.kills} kills: {len(traffic.acknowledged)} of {len(traffic.posted)} events "
        f"acknowledged, {deliveries} deliveries, {len(end.places('dead'))} dead letters, "
        f"{duplicates} duplicates of {books.in_flight.total()} in flight at the kills, none lost"
    )


def _sinks(destinations: Sequence[Destination]) -> str:
    return "\n".join(
        f'[[sink]]\nname = "{destination.name}"\ntype = "http"\nurl = "{destination.url}"\n'
        f'concurrency = {CONCURRENCY}\ntimeout = "1500ms"\n'
        f"{_SETTINGS.get(destination.name, _FLAKY)}\n"
        for destination in destinations
    )
