"""A replay survives kills without a loss or a needless repeat, and live events overtake it."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from relay.core.clock import SystemClock
from relay.core.config_values import Size
from relay.core.delivery import Attempt, Settlement
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, WEBHOOK_TEST, Event
from relay.core.routing import Verdict
from relay.delivery.circuit_breaker import UNSETTLED_PER_SLOT
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests import service
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import Destination, Key, Mood
from tests.guarantees.process import Relay, http_client, until
from tests.guarantees.traffic import Traffic, lead

EVENTS = 3000
KILLS = 5
CONCURRENCY = 8
LIVE = 60

OVERTAKEN = 200
"""Replayed events that may arrive between a live one's acknowledgement and its arrival.

Without a lane of its own, it would wait for the 500 and more that are open before it.
"""

FACTOR = 5.0
FLOOR_S = 0.2
"""A busy machine makes tenths of a second; a live event behind the replay waits for seconds."""

SLOW = Mood(delay_s=0.02)
"""400 a second at most, so that the replay lasts as long as the test needs it."""

TOKEN = "the-token-of-the-guarantees"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\n'
SINK = service.SINK.format(name="{name}", url="{url}", more="concurrency = {concurrency}")


async def test_kills_in_the_middle_of_a_replay_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with AsyncExitStack() as stack:
        destination = await stack.enter_async_context(Destination("crm", SLOW))
        relay = await stack.enter_async_context(_relay(tmp_path, destination))
        old = await _fill(relay.store)
        traffic = await stack.enter_async_context(
            Traffic(relay.url, time_scale=0.02, random=random)
        )
        await relay.start()
        begun = await _api(relay, "/replays", {"until_ms": time.time_ns() // 1_000_000})
        assert begun["total"] == EVENTS
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic.flow(stop, pause_s=0.05))
            in_flight = await _kill_again_and_again(relay, destination, random=random)
            stop.set()

        async def is_done() -> bool:
            return bool((await _api(relay, f"/replays/{begun['id']}"))["state"] == "done")

        await until(is_done, what="the end of the replay", deadline_s=90)
        await until(lambda: not ledger.pending(relay.store), what="the end of the backlog")
        shown = await _api(relay, f"/replays/{begun['id']}")
        assert (shown["opened"], shown["done"]) == (EVENTS, EVENTS)
        assert await relay.stop() == 0, relay.output()
    arrived = Counter(_replayed(destination))
    assert set(arrived) == old
    repeated = arrived - Counter(old)
    assert repeated <= in_flight
    live = {key for key in traffic.acknowledged if traffic.posted[key].kind != WEBHOOK_TEST}
    assert live <= destination.taken.keys()
    end = ledger.read(relay.store)
    assert set(end.deliveries.values()) == {"delivered"}
    assert end.integrity == "ok"
    say(
        f"{KILLS} kills in a replay of {EVENTS}: none lost, {repeated.total()} repeated of "
        f"{in_flight.total()} in flight; {len(live)} live events beside it"
    )


async def _kill_again_and_again(
    relay: Relay, destination: Destination, *, random: Random
) -> Counter[Key]:
    """Kill the relay on its way through the replay; return what was in flight, kill by kill.

    That is what had reached the destination while the store does not know what became of it.
    """
    in_flight: Counter[Key] = Counter()
    for kill in range(KILLS):
        begun = len(_replayed(destination))
        enough = round((kill + random.uniform(0.4, 0.9)) * EVENTS / (KILLS + 1))
        await until(partial(_has_arrived, destination, enough), what="the next kill")
        await relay.kill()
        await until(lambda: not destination.connections, what="hung-up connections")
        arrived = set(_replayed(destination)[begun:])
        pending = {key for _, key in ledger.read(relay.store).places("pending")}
        assert len(arrived & pending) <= CONCURRENCY * (1 + UNSETTLED_PER_SLOT)
        in_flight.update(arrived & pending)
        await relay.start()
    return in_flight


def _has_arrived(destination: Destination, count: int) -> bool:
    return len(_replayed(destination)) >= count


async def test_live_events_overtake_a_replay(tmp_path: Path, random: Random, say: Say) -> None:
    async with AsyncExitStack() as stack:
        destination = await stack.enter_async_context(Destination("crm", SLOW))
        relay = await stack.enter_async_context(_relay(tmp_path, destination))
        await _fill(relay.store)
        traffic = await stack.enter_async_context(Traffic(relay.url, time_scale=1, random=random))
        await relay.start()
        alone_s, _ = await _send_live(traffic, destination)
        begun = await _api(relay, "/replays", {"kind": LEAD_CAPTURED})
        await until(lambda: len(_replayed(destination)) > CONCURRENCY, what="the replay under way")
        beside_s, overtaken = await _send_live(traffic, destination)
        now = await _api(relay, f"/replays/{begun['id']}/cancel", {})
        assert now["state"] == "cancelled"
        assert now["opened"] > CONCURRENCY + LIVE
        assert now["done"] < EVENTS - 500
        assert max(overtaken) <= OVERTAKEN
        assert median(beside_s) < max(FACTOR * median(alone_s), FLOOR_S)
        assert await relay.stop() == 0, relay.output()
    say(
        f"live events beside a replay arrived {median(beside_s) * 1000:.0f} ms after their "
        f"acknowledgement (without it {median(alone_s) * 1000:.0f} ms), "
        f"{max(overtaken)} replayed ones at most in between"
    )


def _relay(folder: Path, destination: Destination) -> Relay:
    sink = SINK.format(name=destination.name, url=destination.url, concurrency=CONCURRENCY)
    return Relay(folder, sinks=sink, rest=ADMIN)


async def _fill(path: Path) -> set[Key]:
    """Put delivered events into a store, as if a relay had run on it before."""
    path.parent.mkdir(parents=True)
    settings = SqliteSettings(path=str(path), min_free=Size.parse("0B"))
    clock = SystemClock()
    store = await open_store(settings, clock=clock)
    events = [_event(number, clock.now_ms()) for number in range(EVENTS)]
    verdict = Verdict("crm", "takes", "")
    await asyncio.gather(*(store.accept(each, [verdict], lambda _: None) for each in events))
    while True:
        lease = await store.lease("crm", now_ms=clock.now_ms(), limits={"live": 256})
        if not lease.deliveries:
            break
        made = Attempt(
            started_ms=clock.now_ms(),
            duration_ms=1,
            result="delivered",
            status=200,
            reason="",
            answer="",
        )
        await asyncio.gather(
            *(
                store.settle(Settlement(delivery=each, attempt=made, due_ms=0))
                for each in lease.deliveries
            )
        )
    await store.close()
    return {("main", each.id) for each in events}


def _event(number: int, now_ms: int) -> Event:
    name = f"old_{number:05}"
    return Event(
        source="main",
        id=name,
        kind=LEAD_CAPTURED,
        created_at=None,
        received_ms=now_ms,
        body=lead(name),
        headers=b"",
    )


def _replayed(destination: Destination) -> list[Key]:
    return [each.key for each in destination.arrivals if each.key[1].startswith("old_")]


async def _send_live(traffic: Traffic, destination: Destination) -> tuple[list[float], list[int]]:
    """Send live events one by one: how long after its answer each arrived, behind how many."""
    lags_s: list[float] = []
    overtaken: list[int] = []
    for _ in range(LIVE):
        key = ("main", traffic.next_id)
        before = len(destination.arrivals)
        assert await traffic.attempt(VIDEO_WATCHED) == 202
        acknowledged_s = time.monotonic()
        await until(
            lambda key=key, before=before: any(  # type: ignore[misc]
                each.key == key for each in destination.arrivals[before:]
            ),
            what="a live event's arrival",
        )
        arrivals = destination.arrivals[before:]
        (place,) = (index for index, each in enumerate(arrivals) if each.key == key)
        lags_s.append(max(0.0, arrivals[place].at_s - acknowledged_s))
        overtaken.append(place)
    return lags_s, overtaken


async def _api(relay: Relay, path: str, body: object = None) -> Any:
    """Ask the admin API, or have it do something; waits for a relay that has just begun."""
    async with http_client() as client:
        answer = await client.request(
            "GET" if body is None else "POST",
            f"{relay.admin_url}/api/v1{path}",
            json=body,
            headers={"authorization": f"Bearer {TOKEN}"},
        )
    assert answer.status_code == 200, answer.text
    return answer.json()
