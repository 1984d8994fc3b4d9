"""A sink that hangs, refuses or crawls delays neither the acknowledgement nor another sink."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles

from relay.core.event import VIDEO_WATCHED
from tests import service
from tests.guarantees.conftest import Say
from tests.guarantees.destinations import FAILING, HANGING, Destination
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import Traffic

ROUNDS = 12
EVENTS = 20
"""Per round and relay; enough for a percentile in the end."""

FACTOR = 5.0
FLOOR_S = 0.2
"""A busy machine makes tenths of a second; a stalled sink or acknowledgement makes whole ones."""

HEALTHY = service.SINK.format(name="healthy", url="{url}", more="")
BAD = """
[[sink]]
name = "hanging"
type = "http"
url = "{hanging}"
timeout = "60s"

[[sink]]
name = "refusing"
type = "http"
url = "{refusing}"
retry = {{ first = "10ms", max = "20ms" }}

[[sink]]
name = "crawling"
type = "http"
url = "{crawling}"
rate = "1/s"
"""


@dataclass
class Party:
    """One relay with a healthy sink, and what was measured of both."""

    relay: Relay
    traffic: Traffic
    healthy: Destination
    acknowledged_s: list[float] = field(default_factory=list)
    delivered_s: list[float] = field(default_factory=list)

    async def play(self) -> None:
        """Send some events, a few at once, and wait until the healthy sink has them."""
        begun = len(self.healthy.arrivals)
        started_s: dict[str, float] = {}
        for _ in range(EVENTS // 4):
            await asyncio.gather(*(self._send(started_s) for _ in range(4)))
        await until(
            lambda: len(self.healthy.taken) == len(self.traffic.posted),
            what="all at the healthy sink",
        )
        self.delivered_s += [
            arrival.at_s - started_s[arrival.key[1]] for arrival in self.healthy.arrivals[begun:]
        ]

    async def _send(self, started_s: dict[str, float]) -> None:
        now_s = time.monotonic()
        started_s[self.traffic.next_id] = now_s
        assert await self.traffic.attempt(VIDEO_WATCHED) == 202
        self.acknowledged_s.append(time.monotonic() - now_s)


async def test_bad_sinks_slow_down_neither_the_acknowledgement_nor_a_healthy_sink(
    tmp_path: Path, random: Random, say: Say
) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hanging = await enter(Destination("hanging", HANGING))
        refusing = await enter(Destination("refusing", FAILING))
        crawling = await enter(Destination("crawling"))
        bad = BAD.format(hanging=hanging.url, refusing=refusing.url, crawling=crawling.url)
        parties = []
        for name, sinks in (("alone", ""), ("beside", bad)):
            (tmp_path / name).mkdir()
            healthy = await enter(Destination("healthy"))
            relay = await enter(
                Relay(tmp_path / name, sinks=HEALTHY.format(url=healthy.url) + sinks)
            )
            traffic = await enter(Traffic(relay.url, time_scale=1, random=random))
            await relay.start()
            parties.append(Party(relay, traffic, healthy))
        alone, beside = parties
        await _let_the_bad_sinks_fall_behind(beside, hanging, refusing, crawling)
        for _ in range(ROUNDS):
            for party in parties:
                await party.play()
        _assert_as_fast(alone.acknowledged_s, beside.acknowledged_s)
        _assert_as_fast(alone.delivered_s, beside.delivered_s)
        assert len(beside.delivered_s) == ROUNDS * EVENTS
        assert set(beside.healthy.taken.values()) == {1}
        assert hanging.taken.total() == refusing.taken.total() == 0
        assert await beside.relay.metric("relay_pending_deliveries", sink="crawling") > 100
    say(
        f"with bad sinks beside it (without): acknowledged in {_show(beside.acknowledged_s)} "
        f"({_show(alone.acknowledged_s)}), delivered in {_show(beside.delivered_s)} "
        f"({_show(alone.delivered_s)})"
    )


async def _let_the_bad_sinks_fall_behind(
    beside: Party, hanging: Destination, refusing: Destination, crawling: Destination
) -> None:
    for _ in range(10):
        await beside.play()
    beside.acknowledged_s.clear()
    beside.delivered_s.clear()
    await until(
        lambda: len(hanging.open()) == 16 and len(refusing.arrivals) > 5 and bool(crawling.taken),
        what="one sink that hangs, one that refuses and one that crawls",
    )


def _assert_as_fast(alone_s: list[float], beside_s: list[float]) -> None:
    for fact in (median, _p90):
        assert fact(beside_s) < max(FACTOR * fact(alone_s), FLOOR_S), fact.__name__


def _p90(seconds: list[float]) -> float:
    return quantiles(seconds, n=10)[-1]


def _show(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.1f} ms, p90 {_p90(seconds) * 1000:.1f} ms"
