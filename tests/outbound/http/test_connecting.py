"""How a connection comes about, on both loops: which address, TLS, and what a failure leaves."""

import asyncio
import gc
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from relay.core.config_values import Duration
from relay.core.errors import Temporary
from relay.outbound import tls
from relay.outbound.http import client as http_client
from relay.outbound.http.backend import FALLBACK_S, Backend
from tests.brokers.authority import Authority
from tests.sinks.far_end import FarEnd, until
from tests.sinks.wire import LOOPS, Wires, refusing_port, sockets

HERE = "127.0.0.1"
BESIDE = "127.0.0.2"

Resolve = Callable[[str, int], None]


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
async def _clean(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Whatever fails: no socket is left, and no word of the loop."""
    before = sockets()
    yield
    await until(lambda: sockets() <= before, what="the end of all sockets")
    gc.collect()
    said = caplog.get_records("call")
    assert [each.getMessage() for each in said if each.levelno > logging.INFO] == []


@pytest.fixture
def wires(_clean: None) -> Iterator[Wires]:
    with Wires() as wires:
        yield wires


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def server_file(authority: Authority) -> Path:
    return authority.issue("server")


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> ssl.SSLContext:
    return tls.trusting(str(authority.file))


@pytest.fixture
async def secure(_clean: None, server_file: Path) -> AsyncIterator[FarEnd]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file)
    async with FarEnd(tls=context) as far_end:
        yield far_end


@pytest.fixture
async def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Gives every host name one more address."""
    found: list[object] = []
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def getaddrinfo(host: str | bytes, *rest: Any, **more: Any) -> object:
        # uvloop asks for plain addresses as well, when it connects to them.
        return await real(host, *rest, **more) if host in (HERE, BESIDE) else found

    def add(host: str, port: int) -> None:
        address = (host, port)
        found.append((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address))

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return add


async def reach(port: int, *, host: str = "far.example", within_s: float = 5) -> None:
    stream = await Backend().connect_tcp(host, port, within_s)
    await stream.aclose()


async def shake(port: int, context: ssl.SSLContext, *, within_s: float = 5) -> None:
    stream = await Backend().connect_tcp(HERE, port, 5)
    await stream.start_tls(context, HERE, within_s)
    await stream.aclose()


async def test_where_the_first_address_refuses_the_second_is_used(
    wires: Wires, resolve: Resolve
) -> None:
    resolve(BESIDE, wires.port)
    resolve(HERE, wires.port)
    await reach(wires.port)
    await wires.accept()


async def test_where_the_first_address_is_silent_the_second_is_tried_beside_it(
    wires: Wires, resolve: Resolve
) -> None:
    with Wires(host=BESIDE) as silent:
        silent.fall_silent()
        resolve(BESIDE, silent.port)
        resolve(HERE, wires.port)
        before_s = asyncio.get_running_loop().time()
        await reach(wires.port)
        assert asyncio.get_running_loop().time() - before_s > FALLBACK_S - 0.01
        await wires.accept()


async def test_where_all_addresses_refuse_the_connection_is_refused(resolve: Resolve) -> None:
    port = refusing_port()
    resolve(HERE, port)
    resolve(BESIDE, port)
    with pytest.raises(httpcore.ConnectError) as caught:
        await reach(port)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    await fails(f"http://far.example:{port}/", "connection refused")


async def test_an_address_that_is_written_out_needs_no_thread_to_look_it_up() -> None:
    threads = threading.active_count()
    with socket.create_server((HERE, 0)) as listener:
        await reach(listener.getsockname()[1], host=HERE)
    assert threading.active_count() == threads


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a..invalid", f"{'a' * 64}.invalid"])
async def test_what_is_no_name_or_nobodys_is_not_found(host: str) -> None:
    with pytest.raises(httpcore.ConnectError) as caught:
        await reach(80, host=host)
    assert isinstance(caught.value.__cause__, socket.gaierror)
    await fails(f"http://{host}/", "name not found")


async def test_who_does_not_take_a_connection_in_time_is_too_slow(wires: Wires) -> None:
    wires.fall_silent()
    with pytest.raises(httpcore.ConnectTimeout):
        await reach(wires.port, host=HERE, within_s=0.1)


async def test_who_does_not_answer_to_tls_in_time_is_too_slow(
    wires: Wires, trusting: ssl.SSLContext
) -> None:
    shaking = asyncio.create_task(shake(wires.port, trusting, within_s=0.2))
    wire = await wires.accept()
    assert await wire.take()
    with pytest.raises(httpcore.ConnectTimeout):
        await shaking
    assert await wire.take() == b""


async def test_who_speaks_something_else_than_tls_is_told_so(
    wires: Wires, trusting: ssl.SSLContext
) -> None:
    shaking = asyncio.create_task(shake(wires.port, trusting))
    wire = await wires.accept()
    await wire.say(b"220 here speaks another protocol, and it speaks first\r\n")
    with pytest.raises(httpcore.ConnectError) as caught:
        await shaking
    assert isinstance(caught.value.__cause__, ssl.SSLError)


async def test_who_hangs_up_on_tls_is_told_so(wires: Wires, trusting: ssl.SSLContext) -> None:
    shaking = asyncio.create_task(shake(wires.port, trusting))
    wire = await wires.accept()
    await wire.take()
    wire.close()
    with pytest.raises(httpcore.ConnectError) as caught:
        await shaking
    assert isinstance(caught.value.__cause__, ConnectionResetError)


async def test_a_certificate_that_nobody_vouches_for_is_told_so(secure: FarEnd) -> None:
    with pytest.raises(httpcore.ConnectError) as caught:
        await shake(secure.port, ssl.create_default_context())
    assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
    await until(lambda: secure.open == 0, what="the end of the connection")


async def test_fifty_exchanges_over_tls_need_one_connection(
    secure: FarEnd, trusting: ssl.SSLContext
) -> None:
    async with client(trusting) as way:
        for _ in range(50):
            await http_client.exchange(way, httpx.Request("POST", secure.url(), content=b"x"))
    assert (len(secure.requests), secure.accepted) == (50, 1)


async def test_a_tls_connection_that_the_far_end_closed_is_not_used_again(
    secure: FarEnd, trusting: ssl.SSLContext
) -> None:
    async with client(trusting) as way:
        for _ in range(3):
            await http_client.exchange(way, httpx.Request("POST", secure.url(), content=b"x"))
            await secure.stop()
            await secure.listen()
    assert (len(secure.requests), secure.accepted) == (3, 3)


async def test_a_large_request_over_tls_arrives_whole(
    secure: FarEnd, trusting: ssl.SSLContext
) -> None:
    body = b"0123456789abcdef" * 640 * 1024
    async with client(trusting) as way:
        await http_client.exchange(way, httpx.Request("POST", secure.url(), content=body))
    assert secure.requests[0].body == body


async def test_a_cancelled_resolution_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def getaddrinfo(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    await cancelled(reach(80), once=asked.wait())


@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_cancelled_connection_leaves_nothing(
    wires: Wires, resolve: Resolve, addresses: int
) -> None:
    wires.fall_silent()
    for _ in range(addresses):
        resolve(HERE, wires.port)
    had = len(sockets())
    tried = until(lambda: len(sockets()) == had + addresses, what="an attempt at each address")
    await cancelled(reach(wires.port), once=tried)


async def test_a_cancelled_handshake_leaves_nothing(wires: Wires, trusting: ssl.SSLContext) -> None:
    async def begun() -> None:
        await (await wires.accept()).take()

    await cancelled(shake(wires.port, trusting), once=begun())
    assert await wires.accepted[0].take() == b""


async def cancelled(what: Awaitable[None], *, once: Awaitable[object]) -> None:
    tasks = asyncio.all_tasks()
    task = asyncio.ensure_future(what)
    await once
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == tasks


def client(verify: ssl.SSLContext | None = None) -> httpx.AsyncBaseTransport:
    return http_client.client(timeout=Duration.parse("5s"), connections=1, verify=verify)


async def fails(url: str, reason: str) -> None:
    async with client() as way:
        with pytest.raises(Temporary) as caught:
            await http_client.exchange(way, httpx.Request("POST", url))
    assert caught.value.reason == reason
