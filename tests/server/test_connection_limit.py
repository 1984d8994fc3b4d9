"""Connections without end: which are closed, refused or kept waiting, and that others are served.

hostile-requests.md has no row for it; RFC 9112, 9.5 and 9.6, lets a server choose.
"""

import asyncio
import contextlib
import os
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from relay.server.connection_limit import (
    ADMIN_MAX,
    PUBLIC_MAX,
    ConnectionLimit,
    admin_total,
    file_limit,
    public_total,
)
from relay.server.http_protocol import HttpProtocol
from relay.server.listener import Listener, keep
from tests.caller import PATH, Caller, post, signed
from tests.guarantees.process import SECRET, Relay
from tests.loop_watch import PlainLoop, UvLoop
from tests.receiver.hostile import EVENT
from tests.server.test_listener import Gate, client_address, listening, request, soon

FIRST, SECOND, PROXY = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture(
    params=[("asyncio", {"loop_factory": each}) for each in (UvLoop, PlainLoop)],
    ids=["uvloop", "plain"],
)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class Reached(Counter[str]):
    """Counts the limits that were reached, by their cause."""

    def __call__(self, cause: str, **_: str) -> None:
        self[cause] += 1


class Callers:
    """Loopback connections to a listener; all are closed on exit."""

    def __init__(self, listener: Listener, stack: contextlib.AsyncExitStack) -> None:
        self._listener = listener
        self._stack = stack

    async def idle(self, host: str = FIRST) -> Caller:
        """A connection with no request yet."""
        streams = await asyncio.open_connection(
            "127.0.0.1", self._listener.port, local_addr=(host, 0)
        )
        return await self._stack.enter_async_context(Caller(*streams))

    async def asked(self, host: str = FIRST) -> Caller:
        """A connection on which a request was answered."""
        caller = await self.idle(host)
        assert (await caller.ask(request())).status == 200
        return caller


@contextlib.asynccontextmanager
async def callers(limit: ConnectionLimit, app: object = client_address) -> AsyncIterator[Callers]:
    async with (
        listening(app, limit=limit) as listener,  # type: ignore[arg-type]
        contextlib.AsyncExitStack() as stack,
    ):
        yield Callers(listener, stack)


async def test_the_connection_that_idled_for_longest_makes_room() -> None:
    limit = ConnectionLimit(3, is_trusted=lambda _: True, reached=(reached := Reached()))
    async with callers(limit) as of:
        first, second, third = [await of.asked() for _ in range(3)]
        assert (await first.ask(request())).status == 200
        fourth = await of.asked()
        assert await second.is_closed()
        for kept in (first, third, fourth):
            assert (await kept.ask(request())).status == 200
    assert reached == {"total": 1}


async def test_connections_without_a_request_delay_no_other() -> None:
    limit = ConnectionLimit(4, is_trusted=lambda _: True, reached=(reached := Reached()))
    async with callers(limit) as of:
        silent = [await of.idle() for _ in range(40)]
        dawdling = await of.idle()
        dawdling.write(b"GET / HTTP/1.1\r\nHost: re")
        assert (await (await of.idle()).ask(request())).status == 200
        assert all([await each.is_closed() for each in silent[:-3]])
    assert set(reached) == {"total"}


async def test_an_address_has_a_fourth_of_the_connections_and_a_proxy_all() -> None:
    limit = ConnectionLimit(8, is_trusted=PROXY.__eq__, reached=(reached := Reached()))
    async with callers(limit) as of:
        other = await of.asked(SECOND)
        first, second, third = [await of.asked(FIRST) for _ in range(3)]
        assert await first.is_closed()
        proxies = [await of.asked(PROXY) for _ in range(5)]
        for kept in (other, second, third, *proxies):
            assert (await kept.ask(request())).status == 200
    assert reached == {"address": 1}


async def test_an_address_that_has_its_share_of_requests_under_way_is_refused_more() -> None:
    gate = Gate()
    limit = ConnectionLimit(4, reached=(reached := Reached()))
    async with callers(limit, gate) as of:
        (asking := await of.idle()).write(request())
        await gate.entered.wait()
        assert await (await of.idle()).is_closed()
        gate.release.set()
        assert (await asking.answer()).body == b"done"
        other = await of.idle(SECOND)
        assert (await other.ask(request())).body == b"done"
    assert reached == {"address": 1}


async def test_without_an_idle_connection_the_next_one_waits_for_its_turn() -> None:
    gate = Gate()
    limit = ConnectionLimit(2, is_trusted=lambda _: True, reached=(reached := Reached()))
    async with callers(limit, gate) as of:
        asking = []
        for _ in range(5):
            asking.append(await of.idle())
            asking[-1].write(request())
        await soon(lambda: reached["busy"] > 1)
        gate.release.set()
        assert [(await each.answer()).body for each in asking] == [b"done"] * 5
    assert set(reached) == {"busy", "total"}


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads a body, and answers at length."""
    if scope["path"] == "/kept":
        keep(scope)
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    with contextlib.suppress(OSError):
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})


def connections(limit: ConnectionLimit) -> Callable[[], list[HttpProtocol]]:
    return lambda: [each for each in limit._held if isinstance(each, HttpProtocol)]


HALF = b"POST / HTTP/1.1\r\nHost: relay\r\nContent-Length: 9\r\n\r\nhalf"
UNREAD = b"GET /%b HTTP/1.1\r\nHost: relay\r\n\r\n"


@pytest.mark.parametrize("holding", [HALF, UNREAD % b""], ids=["half a body", "an unread answer"])
async def test_a_request_that_waits_for_its_client_makes_room(holding: bytes) -> None:
    limit = ConnectionLimit(2, is_trusted=lambda _: True, reached=(reached := Reached()))
    async with callers(limit, silent) as of:
        for _ in range(2):
            (await of.idle()).write(holding)
        held = connections(limit)
        await soon(lambda: sum(each._due for each in held()) == 2)
        if holding != HALF:
            await soon(lambda: all(each._stall for each in held()))
        (third := await of.idle()).write(HALF)
        await soon(lambda: reached["total"] == 1)
        third.write(b" done")
    assert reached == {"total": 1}


async def test_an_operators_response_is_not_cut_off_however_slowly_it_is_read() -> None:
    limit = ConnectionLimit(1, is_trusted=lambda _: True, reached=(reached := Reached()))
    async with callers(limit, silent) as of:
        (await of.idle()).write(UNREAD % b"kept")
        await soon(lambda: any(each._stall for each in connections(limit)()))
        await of.idle()
        await soon(lambda: reached["busy"] > 1)
    assert set(reached) == {"busy"}


async def test_a_listener_without_file_descriptors_pauses_and_recovers_by_itself() -> None:
    limit = ConnectionLimit(PUBLIC_MAX, reached=(reached := Reached()))
    async with listening(client_address, limit=limit) as listener:
        with socket.socket() as late:
            late.settimeout(0)
            with without_files():
                late.connect_ex(("127.0.0.1", listener.port))
                spent_s = os.times().user
                await soon(lambda: reached["files"] >= 5)
                # Five looks, a tenth of a second apart: a loop that spins would burn all of it.
                assert os.times().user - spent_s < 0.4
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(late, request())
            async with asyncio.timeout(5):
                assert b"200 OK" in await loop.sock_recv(late, 1000)
    assert set(reached) == {"files"}


@contextlib.contextmanager
def without_files() -> Iterator[None]:
    """Every file that the process may open is taken until the block ends."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as taken:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


@pytest.mark.parametrize(
    ("one", "another", "shared"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_the_addresses_of_one_ipv6_site_share_what_one_may_have(
    one: str, another: str, shared: bool
) -> None:
    limit = ConnectionLimit(4)
    limit.enter(Busy(), one)
    assert limit.admits(another) is not shared


def test_a_proxy_is_known_by_its_ipv4_address_on_an_ipv6_socket_too() -> None:
    limit = ConnectionLimit(1, is_trusted="192.0.2.1".__eq__)
    limit.enter(Busy(), "::ffff:192.0.2.1")
    assert limit.admits("::ffff:192.0.2.1")


class Busy:
    def evict(self) -> bool:
        return False


@pytest.mark.parametrize("files", [1, 16, 256, 1024, 4096, 1 << 20])
def test_a_part_of_the_files_is_never_spent_on_connections(files: int) -> None:
    public, admin = public_total(files), admin_total(files)
    assert 1 <= public <= PUBLIC_MAX
    assert 1 <= admin <= ADMIN_MAX
    assert files < 16 or files - public - admin >= files * 3 // 8


def test_the_soft_limit_of_files_becomes_the_hard_one() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        assert file_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Relay]:
    """A relay that may open 512 files, 128 unless it asks, with 1,200 idle connections."""
    prefix = ("prlimit", "--nofile=128:512")
    server = 'trusted_proxies = ["127.0.0.3"]'
    async with Relay(tmp_path, sinks="", server=server, prefix=prefix) as relay:
        await relay.start()
        with contextlib.ExitStack() as idle:
            for number in range(1200):
                port = relay.admin_port if number % 4 < 2 else relay.port
                where = (PROXY if number % 2 else FIRST, 0)
                made = socket.create_connection(("127.0.0.1", port), 5, source_address=where)
                idle.enter_context(made)
            yield relay


@pytest.mark.servers
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": PlainLoop})])
async def test_idle_connections_beyond_all_files_silence_neither_listener(crowded: Relay) -> None:
    answer = await crowded.ask("/healthz")
    assert answer is not None
    assert answer.status_code == 200
    streams = await asyncio.open_connection("127.0.0.1", crowded.port)
    async with Caller(*streams) as caller:
        signature = signed(EVENT, secret=SECRET)
        signed_post = post(EVENT, ("Service-Signature", signature), target=PATH, sign=False)
        assert (await caller.ask(signed_post)).status == 202
    for listener in ("public", "admin"):
        name = "relay_connections_limited_total"
        assert await crowded.metric(name, listener=listener, reason="total") > 0
        assert await crowded.metric(name, listener=listener, reason="address") > 0
        assert await crowded.metric(name, listener=listener, reason="files") == 0
    lines = crowded.lines("listener.limit_reached")
    assert sorted((line["key"], line["reason"]) for line in lines) == [
        (key, reason)
        for key in ("server.admin_listen", "server.listen")
        for reason in ("address", "total")
    ]
    assert all(line["advice"] for line in lines)
