"""A sink whose dispatcher is stuck pages, under a real Prometheus with the shipped rules."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from relay.core import sample_events
from relay.core.event import VIDEO_WATCHED
from relay.delivery import standstill
from relay.delivery.dispatcher import Dispatcher
from tests import service
from tests.caller import post
from tests.deploy.prometheus import require_prometheus
from tests.deploy.test_prometheus import scraping
from tests.guarantees.process import until as until_slowly
from tests.stub_server import StubServer, until

pytestmark = [pytest.mark.servers, pytest.mark.long]


class Hurrying(service.ShiftedClock):
    """A clock that can be set forward as a whole."""

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_s


async def test_a_dispatcher_that_is_stopped_pages_and_its_end_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_prometheus()
    monkeypatch.setattr(standstill, "LOOK_EVERY_S", 0.2)
    works, clock, released = Dispatcher._wait, Hurrying(), asyncio.Event()

    async def stuck(dispatcher: Dispatcher, wait_s: float) -> None:
        if dispatcher.name == "all":
            await released.wait()
        await works(dispatcher, wait_s)

    monkeypatch.setattr(Dispatcher, "_wait", stuck)
    monkeypatch.setattr(Dispatcher, "offer", lambda *_: False)
    async with StubServer() as destination:
        settings = service.read(tmp_path, destination=destination)
        async with service.serving(settings, clock=clock) as relay:
            target = relay.service.admin.url.removeprefix("http://")
            async with scraping(tmp_path, target) as server:

                async def firing() -> set[str]:
                    found = await asyncio.to_thread(
                        server.ask, 'ALERTS{alertstate="firing", severity="page"}'
                    )
                    return {dict(labels)["alertname"] for labels in found}

                event = sample_events.event(VIDEO_WATCHED, source="main", event_id="evt_1")
                assert (await relay.ask(post(event.body))).status == 202
                await until(lambda: _stands_still(relay), what="the standstill")
                assert await firing() == set()
                # In steps that the monitor looks at: a longer gap would not count.
                for seconds in range(8, 310, 8):
                    clock.shift_s += 8
                    await until_slowly(partial(has_stood, relay, seconds), what="a look")

                async def pages() -> bool:
                    return "RelaySinkStandsStill" in await firing()

                await until_slowly(pages, what="the page", deadline_s=60)
                assert relay.lines("sink.stands_still")
                released.set()
                await until(lambda: not _stands_still(relay), what="the end of the standstill")
                await until(lambda: len(destination.requests) == 1, what="the deliveries")


async def has_stood(relay: service.Relay, seconds: float) -> bool:
    return (await relay.counts("relay_sink_standstill_seconds")).get(("all",), 0) >= seconds


def _stands_still(relay: service.Relay) -> bool:
    return relay.service.supervisor.statuses()["all"].stands_still_since_ms is not None
