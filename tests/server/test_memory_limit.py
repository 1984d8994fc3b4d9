"""What strangers may have a listener hold, and who gives way when it is full."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.server.connection_limit import MemoryLimit, public_bytes
from relay.server.http_protocol import HEADERS_MAX
from tests import service
from tests.caller import Caller, head, post
from tests.loop_watch import UvLoop
from tests.receiver.hostile import EVENT
from tests.service import Relay
from tests.stub_server import until

MIB = 1 << 20
STRANGER, SENDER, PROXY = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"loop_factory": UvLoop}


class Holder:
    """A connection that gives way, or has nothing that it could free."""

    def __init__(self, *, gives_way: bool = True) -> None:
        self._gives_way = gives_way
        self.is_closed = False

    def give_way(self) -> bool:
        self.is_closed = self._gives_way
        return self._gives_way


def test_the_largest_connections_of_the_address_that_holds_most_give_way() -> None:
    reached: list[str] = []
    limit = MemoryLimit(160, reached=reached.append)
    small, large, other, newest = (Holder() for _ in range(4))
    limit.hold(small, "a", 40)
    limit.hold(large, "a", 45)
    limit.hold(other, "b", 70)
    limit.hold(newest, "c", 10)
    assert [holder.is_closed for holder in (small, large, other, newest)] == [
        *(False, True, False, False)
    ]
    assert reached == ["a"]


def test_what_was_released_makes_no_one_give_way() -> None:
    limit = MemoryLimit(100, reached=lambda _: None)
    holders = [Holder() for _ in range(50)]
    for holder in holders:
        limit.hold(holder, "a", 90)
        limit.hold(holder, "a", 95)
        limit.release(holder)
        limit.release(holder)
    assert not any(holder.is_closed for holder in holders)


def test_a_connection_that_cannot_free_anything_is_passed_over() -> None:
    limit = MemoryLimit(100, reached=lambda _: None)
    busy, reading, newest = Holder(gives_way=False), Holder(), Holder()
    limit.hold(busy, "a", 60)
    limit.hold(reading, "a", 30)
    limit.hold(newest, "b", 20)
    assert (busy.is_closed, reading.is_closed, newest.is_closed) == (False, True, False)


@pytest.mark.parametrize("max_body", [1024, MIB, 64 * MIB])
def test_the_largest_bodies_that_a_config_allows_have_room(max_body: int) -> None:
    assert public_bytes(max_body) >= 4 * max_body


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[Relay]:
    settings = service.read(tmp_path, server=f'trusted_proxies = ["{PROXY}"]')
    async with service.serving(settings) as relay:
        yield relay


class Strangers:
    """Connections that send bodies, or heads, and never their ends."""

    def __init__(self, relay: Relay, stack: contextlib.AsyncExitStack) -> None:
        self._port = relay.service.public.port
        self._stack = stack

    async def call(self, address: str) -> Caller:
        streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        return await self._stack.enter_async_context(Caller(*streams))

    async def begin(self, address: str, count: int, request: bytes) -> list[Caller]:
        callers = [await self.call(address) for _ in range(count)]
        for caller in callers:
            caller.write(request)
            with contextlib.suppress(ConnectionError):
                await caller.flush()
        return callers


@pytest.fixture
async def strangers(proxied: Relay) -> AsyncIterator[Strangers]:
    async with contextlib.AsyncExitStack() as stack:
        yield Strangers(proxied, stack)


def unfinished(*lines: tuple[str, str]) -> bytes:
    """All but a byte of a body of 1 MiB."""
    return post(b"x" * MIB, *lines, sign=False)[:-1]


def large(name: bytes) -> bytes:
    return EVENT.replace(b"evt_1", name).ljust(MIB)


async def cut_off(relay: Relay) -> float:
    counted = await relay.counts("relay_connections_limited_total")
    return counted.get(("public", "memory"), 0)


@pytest.mark.servers
async def test_bodies_that_never_come_to_an_end_give_way_to_signed_ones(
    proxied: Relay, strangers: Strangers
) -> None:
    begun = await strangers.begin(STRANGER, 40, unfinished())
    await until(lambda: proxied.lines("listener.limit_reached") != [], what="the limit")
    for number in range(8):
        sender = await strangers.call(SENDER)
        assert (await sender.ask(post(large(b"big_%d" % number)))).status == 202
        assert (await sender.ask(post(EVENT.replace(b"evt", b"s%d" % number)))).status == 202
    assert proxied.stored() == 16
    (line,) = proxied.lines("listener.limit_reached")
    assert (line["reason"], line["client"]) == ("memory", STRANGER)
    assert await cut_off(proxied) >= 1
    assert sum([await caller.is_closed() for caller in begun[:4]]) <= 4


@pytest.mark.servers
async def test_behind_a_proxy_the_client_that_holds_most_gives_way(
    proxied: Relay, strangers: Strangers
) -> None:
    sender = await strangers.call(PROXY)
    request = post(large(b"evt_1"), ("X-Forwarded-For", f"203.0.113.9, {SENDER}"))
    sender.write(request[:-1])
    await sender.flush()
    await strangers.begin(PROXY, 40, unfinished(("X-Forwarded-For", "192.0.2.7")))
    await until(lambda: proxied.lines("listener.limit_reached") != [], what="the limit")
    assert (await sender.ask(request[-1:])).status == 202
    (line,) = proxied.lines("listener.limit_reached")
    assert (line["reason"], line["client"]) == ("memory", "192.0.2.7")


@pytest.mark.servers
async def test_pipelined_requests_and_long_heads_give_way_too(
    proxied: Relay, strangers: Strangers
) -> None:
    limit = proxied.service.public._limit.memory
    limit.total = MIB
    get = b"GET / HTTP/1.1\r\n\r\n" * 1000
    long_head = b"POST /webhooks HTTP/1.1\r\nX-Long: " + b"a" * 60_000
    for request in (get, long_head):
        before = await cut_off(proxied)
        await strangers.begin(STRANGER, 60, request)
        assert (await proxied.ask(post(EVENT))).status in (200, 202)
        while await cut_off(proxied) == before:
            await asyncio.sleep(0.01)
    assert limit._sum <= MIB


async def test_a_signed_body_is_counted_only_until_it_is_verified(
    proxied: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = proxied.service.public._limit.memory
    held: list[int] = []
    store = type(proxied.service._store)
    accept = store.accept

    async def accepting(*arguments: object) -> object:
        held.append(limit._sum)
        return await accept(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "accept", accepting)
    assert (await proxied.ask(post(large(b"evt_1")))).status == 202
    assert held == [0]


@pytest.mark.parametrize("side", ["public", "admin"])
async def test_requests_that_wait_hold_few_headers_in_all(proxied: Relay, side: str) -> None:
    listener = getattr(proxied.service, side)
    lines = [("Host", "127.0.0.1"), *[("a", "")] * (HEADERS_MAX - 1)]
    request = head("GET", "/api/nothing", *lines)
    count = 400
    loads: list[int] = []
    async with Caller(*await asyncio.open_connection("127.0.0.1", listener.port)) as caller:
        caller.write(request * count)
        for _ in range(count):
            assert (await caller.answer()).status in (303, 401, 404)
            loads.extend(each._due for each in listener._connections)
    assert max(loads) <= 8


async def test_a_signature_lets_what_came_before_go_on_a_connection_of_many_requests(
    proxied: Relay,
) -> None:
    async with await proxied.call() as caller:
        bodies = [EVENT.replace(b"evt_1", b"evt_%d" % number) for number in range(300)]
        caller.write(b"".join(post(body) for body in bodies))
        assert [(await caller.answer()).status for _ in bodies] == [202] * 300
    assert proxied.service.public._limit.memory._sum == 0
