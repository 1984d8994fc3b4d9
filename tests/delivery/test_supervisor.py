"""The supervisor: sinks paused, checked and woken by name, and closed whatever one raises."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.app.service import Service
from relay.core.config_values import Duration
from relay.core.errors import Temporary
from relay.store import LeasedBatch
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.admin.test_api import body
from tests.brokers.mqtt_double import MqttDouble
from tests.brokers.mqtt_packets import connack
from tests.caller import post
from tests.loop_watch import PlainLoop
from tests.service import Relay, ShiftedClock
from tests.stub_server import StubServer, until

QUICK = service.SINK.format(name="quick", url="{url}", more='timeout = "1s"')

MQTT = """
[[sink]]
name = "broker"
type = "mqtt"
url = "{url}"
"""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    # In real time, because a whole relay works.
    return "asyncio", {"loop_factory": PlainLoop}


def serving(folder: Path, destination: StubServer) -> AbstractAsyncContextManager[Relay]:
    return service.serving(service.read(folder, destination=destination))


async def test_an_unknown_sink_raises_or_is_ignored(relay: Relay) -> None:
    supervisor = relay.service.supervisor
    for work in (supervisor.pause, supervisor.resume, supervisor.check):
        with pytest.raises(KeyError):
            await work("nobody")
    supervisor.wake("nobody")
    assert "nobody" not in supervisor
    assert set(supervisor.names) == set(supervisor.statuses()) == {"all", "leads", "tests"}
    assert await supervisor.paused() == {}


def _has_received(destination: StubServer, count: int) -> bool:
    return len(destination.requests) == count


async def test_an_accepted_request_is_delivered_without_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases: list[str] = []
    lease = SqliteStore.lease

    async def counted(store: SqliteStore, sink: str, **rest: Any) -> LeasedBatch:
        leases.append(sink)
        return await lease(store, sink, **rest)

    monkeypatch.setattr(SqliteStore, "lease", counted)
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        fetchers = [m.dispatcher._fetcher for m in relay.service.supervisor._everyone()]
        await until(lambda: all(each.due_s() > 0 for each in fetchers), what="the first fetches")
        await until(lambda: not any(each.fetching for each in fetchers), what="their ends")
        leases.clear()
        for number in range(1, 6):
            assert (await relay.ask(post(body(f"evt_{number}")))).status == 202
            await until(partial(_has_received, destination, 2 * number), what="both sends")
        assert leases == []


async def test_a_check_ends_at_the_sinks_timeout(tmp_path: Path, destination: StubServer) -> None:
    tables = QUICK.format(url=destination.url("/quick"))
    async with service.serving(service.read(tmp_path, tables=tables)) as relay:
        await relay.service.supervisor.check("quick")
        destination.reply = lambda _: None
        with pytest.raises(Temporary, match="no answer within 1 s"):
            await relay.service.supervisor.check("quick")


async def test_a_check_of_a_sink_that_is_replaced_leaves_no_connection_open(
    tmp_path: Path,
) -> None:
    broker = MqttDouble()
    broker.connack = b""  # it comes late
    async with broker.listen():
        tables = MQTT.format(url=broker.url)
        async with service.serving(service.read(tmp_path, tables=tables)) as relay:
            supervisor = relay.service.supervisor
            check = asyncio.create_task(supervisor.check("broker"))
            await until(lambda: bool(broker.received), what="the CONNECT")
            supervisor.adopt([], {}, paused={}, grace=Duration.parse("1s"))
            await until(lambda: not supervisor._leaving, what="the end of the sink")
            broker.say(connack())
            with pytest.raises(Temporary, match="the sink was closed during the check"):
                await check
            await until(lambda: broker.connections == 0, what="the end of the connection")


async def test_no_check_begins_once_the_sinks_are_closed(tmp_path: Path) -> None:
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        supervisor = relay.service.supervisor
        await supervisor.close()
        with pytest.raises(Temporary, match="closed"):
            await supervisor.check("all")
        assert destination.accepted == 0


async def test_a_cancelled_check_raises_the_cancellation(tmp_path: Path) -> None:
    async with StubServer() as destination, serving(tmp_path, destination) as relay:
        destination.reply = lambda _: None
        check = asyncio.create_task(relay.service.supervisor.check("all"))
        await until(lambda: bool(destination.requests), what="the request")
        check.cancel()
        await asyncio.wait({check})
        assert check.cancelled()


async def test_a_paused_sink_is_paused_in_every_view(relay: Relay) -> None:
    supervisor = relay.service.supervisor
    await supervisor.pause("leads")
    assert supervisor.statuses()["leads"].state == "paused"
    assert set(await supervisor.paused()) == {"leads"}
    await supervisor.resume("leads")
    assert supervisor.statuses()["leads"].state == "active"
    assert await supervisor.paused() == {}
    assert [line["sink"] for line in relay.lines("sink.paused")] == ["leads"]
    assert [line["sink"] for line in relay.lines("sink.resumed")] == ["leads"]


async def test_the_start_logs_the_backlog_of_a_removed_sink(tmp_path: Path) -> None:
    async with StubServer() as destination:
        async with service.serving(service.read(tmp_path, destination=destination)) as relay:
            await relay.service.supervisor.pause("leads")
            assert (await relay.ask(post(body("a")))).status == 202
            await until(lambda: len(destination.requests) == 1, what="the other sink's delivery")
        tables = QUICK.format(url=destination.url("/quick"))
        async with service.serving(service.read(tmp_path, tables=tables)) as relay:
            (line,) = relay.lines("sink.not_configured")
            assert (line["sink"], line["pending"]) == ("leads", 1)


async def test_one_sink_that_cannot_be_closed_leaves_none_open(tmp_path: Path) -> None:
    closed: list[str] = []

    def closing(name: str) -> object:
        async def close() -> None:
            closed.append(name)
            raise OSError(name)

        return close

    async with StubServer() as destination:
        settings = service.read(tmp_path, destination=destination)
        opened = await Service.open(settings, clock=ShiftedClock())
        try:
            for member in opened.supervisor._everyone():
                await member.sink.close()
                member.sink.close = closing(member.name)  # type: ignore[method-assign,assignment]
            await opened.supervisor.close()
        finally:
            await opened._store.close()
    assert sorted(closed) == ["all", "leads", "tests"]


async def test_closing_that_was_cancelled_is_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    closed: list[str] = []
    release = asyncio.Event()

    async def closing(name: str) -> None:
        begun.append(name)
        await release.wait()
        closed.append(name)

    async with StubServer() as destination:
        settings = service.read(tmp_path, destination=destination)
        opened = await Service.open(settings, clock=ShiftedClock())
        try:
            for member in opened.supervisor._everyone():
                await member.sink.close()
                monkeypatch.setattr(member.sink, "close", partial(closing, member.name))
            first = asyncio.create_task(opened.supervisor.close())
            await until(lambda: len(begun) == 3, what="all sinks to be closing")
            first.cancel()
            await asyncio.wait({first})
            release.set()
            await opened.supervisor.close()
        finally:
            await opened._store.close()
    assert sorted(begun) == sorted(closed) == ["all", "leads", "tests"]


async def test_one_hanging_or_failing_sink_does_not_delay_closing_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def closing(name: str) -> None:
        closed.append(name)
        if name == "all":
            await asyncio.Event().wait()
        if name == "leads":
            raise OSError(name)

    monkeypatch.setattr("relay.delivery.configured_sink.CLOSE_TIMEOUT_S", 0.1)
    async with StubServer() as destination:
        settings = service.read(tmp_path, destination=destination)
        opened = await Service.open(settings, clock=ShiftedClock())
        try:
            for member in opened.supervisor._everyone():
                await member.sink.close()
                monkeypatch.setattr(member.sink, "close", partial(closing, member.name))
            await opened.supervisor.close()
            await opened.supervisor.close()
        finally:
            await opened._store.close()
    assert closed == ["all", "leads", "tests"]
