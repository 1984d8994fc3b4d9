"""Dispatching follows the ownership of sinks, which another relay may have."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.core import sample_events
from relay.core.config_values import Duration
from relay.core.errors import StoreTooNew
from relay.core.sink_status import SinkStatus
from relay.store.ownership import ApplyOrders, Cluster, Dispatching, Introduction
from relay.store.paused_sinks import PausedSinks
from tests import service
from tests.caller import post
from tests.loop_watch import PlainLoop
from tests.stub_server import Reply, StubServer, until

GRACE = Duration.parse("1s")
ELSEWHERE = SinkStatus(name="all", type="http", state="parked", is_elsewhere=True)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    # In real time, because a whole relay works.
    return "asyncio", {"loop_factory": PlainLoop}


class Scripted:
    """An ownership that a test changes."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.trusted = True
        self.trusted_times: int | None = None
        """Times that it is trusted when it is asked; None: always."""
        self.configured: list[str] = []

    def holds(self, sink: str) -> bool:
        return sink in self.held

    def may_send(self, sink: str) -> bool:
        if self.trusted_times is not None and sink in self.held:
            self.trusted_times -= 1
            self.trusted = self.trusted_times >= 0
        return self.trusted and sink in self.held

    def introduce(self, me: Introduction) -> None:
        pass

    def configure(self, sinks: Iterable[str]) -> None:
        self.configured = list(sinks)

    def statuses(self) -> Mapping[str, SinkStatus]:
        return {"all": ELSEWHERE}

    async def cluster(self) -> Cluster | None:
        return None

    async def run(self, dispatching: Dispatching, apply_orders: ApplyOrders) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def outdated(self) -> StoreTooNew:
        never: asyncio.Future[StoreTooNew] = asyncio.get_running_loop().create_future()
        return await never


@pytest.fixture
def ownership(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr("relay.store.sqlite.store.SoleOwner", lambda: scripted)
    return scripted


@asynccontextmanager
async def serving(folder: Path, destination: StubServer) -> AsyncIterator[service.Relay]:
    async with service.serving(service.read(folder, destination=destination)) as relay:
        yield relay


async def accept(relay: service.Relay, event_id: str) -> None:
    """Have an event accepted that the sink `all` wants, and `leads` does not."""
    event = sample_events.event("video.created", event_id=event_id)
    assert (await relay.ask(post(event.body))).status == 202


async def test_a_sink_is_sent_to_only_while_this_relay_holds_it(
    tmp_path: Path, ownership: Scripted
) -> None:
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        assert ownership.configured == supervisor.names
        await accept(relay, "evt_before")
        assert supervisor.statuses()["all"] == ELSEWHERE
        assert supervisor.statuses()["leads"].state == "standby"
        assert not destination.requests
        ownership.held = {"all"}
        await supervisor.begin("all")
        await until(lambda: len(destination.requests) == 1, what="the delivery")
        assert supervisor.statuses()["all"].state == "active"
        await supervisor.end("all", grace=GRACE)
        ownership.held = set()
        await accept(relay, "evt_after")
        assert supervisor.statuses()["all"] == ELSEWHERE
        assert len(destination.requests) == 1


async def test_a_sink_begins_while_an_operators_write_waits(
    tmp_path: Path, ownership: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(PausedSinks, "pause", wait)
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        pausing = asyncio.create_task(supervisor.pause("leads"))
        await asyncio.sleep(0)
        ownership.held = {"all"}
        async with asyncio.timeout(5):
            await supervisor.begin("all")
        assert supervisor.statuses()["all"].state == "active"
        pausing.cancel()


async def test_an_end_cancels_what_outlasts_the_grace_and_a_new_begin_sends_it_again(
    tmp_path: Path, ownership: Scripted
) -> None:
    ownership.held = {"all"}
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        destination.reply = lambda _: None
        await accept(relay, "evt_slow")
        await until(lambda: len(destination.requests) == 1, what="the send")
        await supervisor.end("all", grace=Duration(0))
        destination.reply = lambda _: Reply()
        await supervisor.begin("all")
        await until(lambda: len(destination.requests) == 2, what="the second send")


async def test_a_sink_that_is_replaced_during_its_end_stays_open_until_then_and_does_not_begin(
    tmp_path: Path, ownership: Scripted
) -> None:
    ownership.held = {"all"}
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        destination.reply = lambda _: None
        await accept(relay, "evt_slow")
        await until(lambda: len(destination.requests) == 1, what="the send")
        ending = asyncio.create_task(supervisor.end("all", grace=Duration.parse("300ms")))
        await asyncio.sleep(0)
        replaced = supervisor._members["all"]
        settings = [member.settings for member in supervisor._members.values()]
        built = supervisor.build([replaced.settings])
        supervisor.adopt(settings, built, paused={}, grace=GRACE)
        await until(lambda: replaced.is_closing, what="the end of the old sink")
        await until(ending.done, what="the end that was asked for")
        await until(lambda: not supervisor._leaving, what="the end of the reload")
        assert supervisor.statuses()["all"] == ELSEWHERE


async def test_a_pause_ordered_here_and_ended_elsewhere_is_over_when_the_sink_is_taken_over(
    tmp_path: Path, ownership: Scripted
) -> None:
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        await supervisor.pause("all")
        # As another relay does.
        await relay.service._store.paused_sinks.resume("all")
        ownership.held = {"all"}
        await supervisor.begin("all")
        await accept(relay, "evt_after")
        await until(lambda: len(destination.requests) == 1, what="the delivery")


async def test_a_sink_that_is_paused_while_a_reload_reads_the_pauses_stays_paused(
    tmp_path: Path, ownership: Scripted
) -> None:
    ownership.held = {"all"}
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        read_before = await supervisor.paused()
        await supervisor.pause("all")
        settings = [member.settings for member in supervisor._members.values()]
        built = supervisor.build([each for each in settings if each.name == "all"])
        supervisor.adopt(settings, built, paused=read_before, grace=GRACE)
        await until(lambda: not supervisor._leaving, what="the end of the reload")
        assert supervisor.statuses()["all"].state == "paused"


async def test_nothing_is_sent_once_the_ownership_is_no_longer_trusted(
    tmp_path: Path, ownership: Scripted
) -> None:
    ownership.held = {"all"}
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        ownership.trusted = False
        await accept(relay, "evt_untrusted")
        store = relay.service._store
        await until(lambda: store.is_leased("all", 1), what="the lease")
        await accept(relay, "evt_later")
        await until(lambda: store.is_leased("all", 2), what="the second lease")
        await relay.service.supervisor.end("all", grace=GRACE)
        assert not destination.requests


async def test_a_send_that_was_held_up_until_the_trust_ended_does_not_begin(
    tmp_path: Path, ownership: Scripted
) -> None:
    """The process was stopped between the choice of the delivery and the send."""
    ownership.held = {"all"}
    ownership.trusted_times = 1
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        await accept(relay, "evt_late")
        await until(lambda: not ownership.trusted, what="the second question")
        await relay.service.supervisor.end("all", grace=GRACE)
        assert not destination.requests
