"""Connections of the admin listener: whatever holds them, health and metrics are answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import service
from tests.caller import Caller, head
from tests.operator import ADMIN, TOKEN, operating
from tests.service import Relay

pytestmark = pytest.mark.servers

TOTAL = 16
API, STREAMS, PAGE = 8, 4, 6
"""Shares of these, at most."""

STRANGERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
OF_ONE = TOTAL // 4

SOON_S = 2.0
"""Far below the time limit of a form."""

BEARER = ("Authorization", f"Bearer {TOKEN}")
HEALTH = head("GET", "/healthz", ("Host", "relay"))
STREAM = head("GET", "/api/v1/stream", ("Host", "relay"), BEARER)
LOGIN = head("POST", "/login", ("Host", "localhost"), ("Content-Length", "100")) + b"token="


@pytest.fixture
async def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    monkeypatch.setattr("relay.app.service.admin_total", lambda _: TOTAL)
    async with service.serving(service.read(tmp_path, tables=ADMIN)) as relay:
        yield relay


class Callers:
    """Connections to the admin listener; all are closed on exit."""

    def __init__(self, relay: Relay, stack: contextlib.AsyncExitStack) -> None:
        self._port = relay.service.admin.port
        self._stack = stack

    async def open(self, host: str = "127.0.0.1") -> Caller:
        streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(host, 0))
        return await self._stack.enter_async_context(Caller(*streams))

    async def health(self) -> int:
        async with asyncio.timeout(SOON_S):
            return (await (await self.open()).ask(HEALTH)).status


@pytest.fixture
async def callers(relay: Relay) -> AsyncIterator[Callers]:
    async with contextlib.AsyncExitStack() as stack:
        yield Callers(relay, stack)


async def test_streams_leave_connections_to_others_and_end_with_their_clients(
    relay: Relay, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.admin.api.stream.HEARTBEAT_S", 0.05)
    async with operating(relay) as operator, contextlib.AsyncExitStack() as stack:
        for _ in range(STREAMS):
            stream = operator.client.stream("GET", "/api/v1/stream")
            response = await stack.enter_async_context(stream)
            assert response.status_code == 200
        for _ in range(2 * TOTAL):
            refused = await (await callers.open()).ask(STREAM)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert b"Too many streams of the API" in refused.body
        assert await callers.health() == 200
        await operator.get("/status")
    async with asyncio.timeout(20):
        while b"200 OK" not in await first_line(await callers.open()):
            await asyncio.sleep(0.01)


async def first_line(caller: Caller) -> bytes:
    """Ask for a stream; return how its answer begins."""
    caller.write(STREAM)
    return await caller._reader.readline()


async def test_slow_requests_of_operators_leave_connections_to_health_checks(
    relay: Relay, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        await goes_on.wait()
        raise RuntimeError("over")

    monkeypatch.setattr(relay.service._store.audit, "newest", slow)
    ask = head("GET", "/api/v1/audit", ("Host", "relay"), BEARER)
    asking = [await callers.open() for _ in range(TOTAL)]
    for each in asking:
        each.write(ask)
        await each.flush()
    assert await callers.health() == 200
    refused = [each for each in asking[API:] if (await each.answer()).status == 503]
    assert len(refused) == TOTAL - API
    goes_on.set()


async def test_half_a_body_does_not_hold_the_api_for_ever(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.admin.operation.BODY_WAIT_S", 0.1)
    caller = await callers.open()
    ask = head("POST", "/api/v1/replays", ("Host", "relay"), BEARER, ("Content-Length", "100"))
    assert (await caller.ask(ask + b"{")).status == 408


async def hold_forms(callers: Callers) -> None:
    for host in STRANGERS:
        for _ in range(OF_ONE):
            (await callers.open(host)).write(LOGIN)


async def hold_heads(callers: Callers) -> None:
    for host in STRANGERS:
        for _ in range(OF_ONE):
            (await callers.open(host)).write(HEALTH[:-2])


async def hold_bodies(callers: Callers) -> None:
    ask = head("POST", "/api/v1/replays", ("Host", "relay"), BEARER, ("Content-Length", "100"))
    for _ in range(TOTAL):
        (await callers.open()).write(ask + b"{")


@pytest.mark.parametrize("hold", [hold_forms, hold_heads, hold_bodies])
async def test_clients_that_are_waited_for_delay_no_health_check(
    relay: Relay, callers: Callers, hold: object
) -> None:
    await hold(callers)  # type: ignore[operator]
    async with asyncio.timeout(10):
        while len(relay.service.admin._connections) < TOTAL:
            await asyncio.sleep(0.01)
    for _ in range(5):
        assert await callers.health() == 200
