"""Backlogs of running relays: their flow at every place where it is shown, and the finding."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from relay.cli import main
from relay.core.sink_status import Flow
from tests import service
from tests.app.cluster import SALES, Member, cluster, settings
from tests.caller import post
from tests.guarantees.process import until
from tests.operator import ADMIN, TOKEN, operating
from tests.service import SINK, Relay
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

OUT_PER_MINUTE = 300
LIMITED = 'rate = "5/s"'
GROWTH_S = 4.0
"""How long a backlog has to grow here: twice RATE_S."""


@pytest.fixture(autouse=True)
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take less than a second for a minute, as far as the trend goes."""
    for name, seconds in (("SAMPLE_EVERY_S", 0.1), ("KNOWN_AFTER_S", 1.0), ("RATE_S", 2.0)):
        monkeypatch.setattr(f"relay.core.backlog_trend.{name}", seconds)
    monkeypatch.setattr("relay.app.maintenance.GAUGES_EVERY_S", 0.2)
    monkeypatch.setattr("relay.app.maintenance.QUIET_GAUGES_EVERY_S", 0.2)


def lead(name: str) -> bytes:
    return orjson.dumps({"id": name, "event": "lead.captured", "data": {}})


async def send(relay: Relay, *names: str) -> None:
    for name in names:
        assert (await relay.ask(post(lead(name)))).status == 202


@asynccontextmanager
async def loaded(relay: Relay, *, every_s: float) -> AsyncIterator[None]:
    """Send events until the block ends."""

    async def load() -> None:
        number = 0
        while True:
            await send(relay, f"load-{number}")
            number += 1
            await asyncio.sleep(every_s)

    task = asyncio.create_task(load())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def command(relay: Relay) -> Result:
    """Run `relay status` against the relay."""
    where = ("--url", relay.service.admin.url, "--token", TOKEN)
    return await asyncio.to_thread(CliRunner().invoke, main, ["status", *where])


def flow_of(relay: Relay, sink: str = SALES) -> Flow | None:
    return relay.service.supervisor.statuses()[sink].flow


@asynccontextmanager
async def limited(folder: Path, *, more: str = "") -> AsyncIterator[Relay]:
    async with StubServer() as destination:
        sink = SINK.format(name=SALES, url=destination.url("/"), more=f"{LIMITED}\n{more}")
        async with service.serving(service.read(folder, tables=ADMIN + sink)) as relay:
            yield relay


@pytest.mark.servers
async def test_a_sink_that_is_slower_than_its_events_falls_behind_everywhere(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path) as relay, operating(relay) as operator:
        assert (await operator.get("/sinks"))["sinks"][0]["condition"]["flow"] is None
        early = await command(relay)
        assert early.exit_code == 0
        assert "not known yet" in early.stdout or "nothing waits" in early.stdout

        async def status() -> Any:
            return await operator.get("/status")

        async with loaded(relay, every_s=0.03):
            await until(_falls_behind(relay), what="a flow that grows", deadline_s=60)
            stored, report = relay.stored("events"), await status()
            printed = await command(relay)
            rates = await relay.counts("relay_backlog_flow_per_second")
            behind = await relay.counts("relay_sink_falls_behind")
            end = await relay.counts("relay_backlog_expected_end_seconds")
        (finding,) = report["problems"]
        assert not report["well"]
        (sink,) = report["sinks"]
        flow = sink["condition"]["flow"]
        assert flow["out_per_minute"] == pytest.approx(OUT_PER_MINUTE, rel=0.2)
        # All that came is stored, and came in the seconds that growth needs, or in a few more.
        assert 2 * OUT_PER_MINUTE < flow["in_per_minute"] < 1.3 * 60 * stored / GROWTH_S
        assert finding["what"] == (
            f"sink sales falls behind: {flow['out_per_minute']:,.0f} a minute out, "
            f"{flow['in_per_minute']:,.0f} in"
        )
        assert flow["wait_s"] == pytest.approx(sink["pending"] / OUT_PER_MINUTE * 60, rel=0.3)
        assert rates["out", "sales"] == pytest.approx(OUT_PER_MINUTE / 60, rel=0.2)
        assert behind["growing", "sales"] == 1
        assert end["sales",] == math.inf
        assert printed.exit_code == 1, printed.output
        assert "sink sales falls behind: " in printed.stdout
        assert "not at this pace: growing" in printed.stdout


@pytest.mark.servers
async def test_a_backlog_longer_than_give_up_after_is_a_finding_while_it_drains(
    tmp_path: Path,
) -> None:
    more = 'retry = { first = "1s", give_up_after = "3s" }'
    async with limited(tmp_path, more=more) as relay, operating(relay) as operator:
        await send(relay, *(f"event-{number}" for number in range(40)))
        await until(
            lambda: (flow := flow_of(relay)) is not None and flow.too_long_since_ms is not None,
            what="a backlog that takes too long",
        )
        (finding,) = (await operator.get("/status"))["problems"]
        assert finding["what"].endswith("for what waits, longer than its give_up_after")
        printed = await command(relay)
        assert printed.exit_code == 1, printed.output
        assert "longer than its give_up_after" in printed.stdout
        await until(
            lambda: (flow := flow_of(relay)) is not None and flow.direction == "draining",
            what="a backlog that drains",
        )
        flow = flow_of(relay)
        assert flow is not None
        assert flow.end_s is not None
        await until(
            lambda: relay.stored("deliveries WHERE status = 'pending'") == 0,
            what="the end that was expected",
            deadline_s=2 * flow.end_s + 5,
        )
        await until(
            lambda: (flow := flow_of(relay)) is not None and not flow.falls_behind,
            what="the end of the finding",
        )
        assert (await operator.get("/status"))["well"]


@pytest.mark.servers
async def test_an_event_says_how_many_are_ahead_of_it(tmp_path: Path) -> None:
    async with limited(tmp_path) as relay, operating(relay) as operator:
        await send(relay, *(f"event-{number}" for number in range(40)))
        (last,) = (await operator.get("/events/find", beginning="event-39"))["events"]
        (queued,) = (await operator.get(f"/events/{last['seq']}"))["queue"]
        assert queued["sink"] == SALES
        assert 20 < queued["ahead"] < 40
        assert not queued["is_more"]


@pytest.mark.long
async def test_every_member_of_a_cluster_shows_the_figures_of_the_owner(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    configs = [
        settings(tmp_path / name, place, destination, more=LIMITED) for name in ("one", "two")
    ]
    async with cluster(place, *configs) as members:
        owner, other = sorted(members, key=Member.owns, reverse=True)
        async with loaded(other.relay, every_s=0.03):
            await until(_falls_behind(other.relay), what="growth, as the other relay says")
            flow = flow_of(other.relay)
            assert flow is not None
            assert flow.out_per_minute == pytest.approx(OUT_PER_MINUTE, rel=0.3)
            assert flow.in_per_minute > 2 * OUT_PER_MINUTE
            for each in members:
                (finding,) = (await each.operator.get("/status"))["problems"]
                assert finding["what"].startswith("sink sales falls behind: ")
        await until(lambda: flow_of(owner.relay) == flow_of(other.relay), what="equal figures")
        text = await other.relay.metrics()
        assert 'relay_sink_falls_behind{sink="sales"' not in text


def _falls_behind(relay: Relay) -> Callable[[], bool | Awaitable[bool]]:
    def falls_behind() -> bool:
        flow = flow_of(relay)
        return flow is not None and flow.growing_since_ms is not None

    return falls_behind
