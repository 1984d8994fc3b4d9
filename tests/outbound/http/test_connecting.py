"""How a connection comes about, on both loops: which address, TLS, and what a failure leaves."""

import asyncio
import gc
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.outbound import tls
from relay.outbound.http.client import HttpClient, HttpEndpoint
from relay.outbound.http.responses import HttpResponse
from tests.brokers.authority import Authority
from tests.sinks.wire import LOOPS, Wires, refusing_port, sockets
from tests.stub_server import StubServer, until

HERE = "127.0.0.1"
BESIDE = "127.0.0.2"
FAR = "far.example"
FALLBACK_S = 0.25
"""RFC 8305, section 5: an address has this long for itself before the next is tried beside it."""
OLD_VERSION = b"\x15\x03\x02\0\x02\x02\x46"
"""The alert `protocol_version` of TLS 1.1 (RFC 4346, section 7.2)."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

Resolve = Callable[[str, int], None]


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"loop_factory": request.param}


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
async def secure(_clean: None, server_file: Path) -> AsyncIterator[StubServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file)
    async with StubServer(tls=context) as destination:
        yield destination


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


@asynccontextmanager
async def client(
    verify: ssl.SSLContext | None = None, *, within_s: float = 5
) -> AsyncIterator[HttpClient]:
    client = HttpClient(timeout_s=within_s, connections=1, verify=verify)
    try:
        yield client
    finally:
        await client.close()


async def reach(
    url: str, verify: ssl.SSLContext | None = None, *, within_s: float = 5, body: bytes = b"x"
) -> HttpResponse:
    async with client(verify, within_s=within_s) as way:
        return await way.exchange(HttpEndpoint.of(url), body=body)


async def failure(url: str, verify: ssl.SSLContext | None = None, **how: Any) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await reach(url, verify, **how)
    return caught.value


async def answer(wires: Wires) -> None:
    wire = await wires.accept()
    await wire.take()
    await wire.say(ANSWER)


async def test_the_second_address_is_used_if_the_first_refuses(
    wires: Wires, resolve: Resolve
) -> None:
    resolve(BESIDE, wires.port)
    resolve(HERE, wires.port)
    response, _ = await asyncio.gather(reach(f"http://{FAR}:{wires.port}/"), answer(wires))
    assert response.status == 200


async def test_the_second_address_is_tried_in_parallel_if_the_first_is_silent(
    wires: Wires, resolve: Resolve
) -> None:
    with Wires(host=BESIDE, port=wires.port) as silent:
        silent.fall_silent()
        resolve(BESIDE, wires.port)
        resolve(HERE, wires.port)
        before_s = asyncio.get_running_loop().time()
        response, _ = await asyncio.gather(reach(f"http://{FAR}:{wires.port}/"), answer(wires))
        assert response.status == 200
        assert FALLBACK_S - 0.01 < asyncio.get_running_loop().time() - before_s < 5 - FALLBACK_S


async def test_a_connection_is_refused_if_all_addresses_refuse_it(resolve: Resolve) -> None:
    port = refusing_port()
    resolve(HERE, port)
    resolve(BESIDE, port)
    error = await failure(f"http://{FAR}:{port}/")
    assert (type(error), error.reason) == (Temporary, "connection refused")
    assert not error.about_event


async def test_an_address_that_is_written_out_needs_no_thread_to_look_it_up(wires: Wires) -> None:
    threads = threading.active_count()
    await asyncio.gather(reach(wires.url), answer(wires))
    assert threading.active_count() == threads


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a..invalid", f"{'a' * 64}.invalid"])
async def test_an_invalid_or_unknown_name_is_not_found(host: str) -> None:
    error = await failure(f"http://{host}/")
    assert (type(error), error.reason) == (Temporary, "name not found")


async def test_a_slow_connect_is_a_timeout(wires: Wires) -> None:
    wires.fall_silent()
    error = await failure(wires.url, within_s=0.1)
    assert (type(error), error.reason) == (Temporary, "could not connect in time")


async def test_a_slow_tls_handshake_is_a_timeout(wires: Wires, trusting: ssl.SSLContext) -> None:
    shaking = asyncio.create_task(failure(secured(wires), trusting, within_s=0.2))
    wire = await wires.accept()
    assert await wire.take()
    assert (await shaking).reason == "could not connect in time"
    assert await wire.take() == b""


async def test_a_server_that_speaks_no_tls_is_named(wires: Wires, trusting: ssl.SSLContext) -> None:
    shaking = asyncio.create_task(failure(secured(wires), trusting))
    wire = await wires.accept()
    await wire.say(b"220 here speaks another protocol, and it speaks first\r\n")
    error = await shaking
    reason = "the destination does not speak TLS at this port"
    assert (type(error), error.reason) == (Temporary, reason)


async def test_a_server_that_speaks_old_versions_of_tls_alone_is_named(
    wires: Wires, trusting: ssl.SSLContext
) -> None:
    shaking = asyncio.create_task(failure(secured(wires), trusting))
    wire = await wires.accept()
    await wire.take()
    await wire.say(OLD_VERSION)
    error = await shaking
    reason = "the destination speaks no version of TLS from 1.2 on"
    assert (type(error), error.reason) == (Temporary, reason)


async def test_a_server_that_closes_during_the_tls_handshake_is_a_failed_connect(
    wires: Wires, trusting: ssl.SSLContext
) -> None:
    shaking = asyncio.create_task(failure(secured(wires), trusting))
    wire = await wires.accept()
    await wire.take()
    wire.close()
    error = await shaking
    assert (type(error), error.reason) == (Temporary, "could not connect")


async def test_an_untrusted_certificate_is_reported(secure: StubServer) -> None:
    error = await failure(secure.url(), ssl.create_default_context())
    assert isinstance(error, Misconfigured)
    assert "certificate does not verify: unable to get local issuer certificate" in error.reason
    await until(lambda: secure.open == 0, what="the end of the connection")


async def test_fifty_exchanges_over_tls_need_one_connection(
    secure: StubServer, trusting: ssl.SSLContext
) -> None:
    async with client(trusting) as way:
        for _ in range(50):
            await way.exchange(HttpEndpoint.of(secure.url()), body=b"x")
    assert (len(secure.requests), secure.accepted) == (50, 1)


async def test_a_tls_connection_that_the_destination_closed_is_not_used_again(
    secure: StubServer, trusting: ssl.SSLContext
) -> None:
    async with client(trusting) as way:
        for _ in range(3):
            await way.exchange(HttpEndpoint.of(secure.url()), body=b"x")
            await secure.stop()
            await secure.listen()
    assert (len(secure.requests), secure.accepted) == (3, 3)


async def test_a_large_request_over_tls_arrives_whole(
    secure: StubServer, trusting: ssl.SSLContext
) -> None:
    body = b"0123456789abcdef" * 640 * 1024
    await reach(secure.url(), trusting, body=body)
    assert secure.requests[0].body == body


async def test_connections_opened_at_once_share_a_lookup_and_later_ones_look_up_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    let_go = asyncio.Event()

    async def getaddrinfo(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        await let_go.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    client = HttpClient(timeout_s=5, connections=3)
    try:
        for _ in range(2):
            asked.clear()
            let_go.clear()
            far = HttpEndpoint.of(f"http://{FAR}/")
            exchanges = [asyncio.create_task(client.exchange(far)) for _ in range(3)]
            await until(lambda: bool(asked), what="a lookup")
            let_go.set()
            failures = await asyncio.gather(*exchanges, return_exceptions=True)
            assert {type(each) for each in failures} == {Temporary}
            assert asked == [FAR]
    finally:
        await client.close()


async def test_a_cancelled_resolution_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def getaddrinfo(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    await cancelled(reach(f"http://{FAR}/"), once=asked.wait())


@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_cancelled_connection_leaves_nothing(
    wires: Wires, resolve: Resolve, addresses: int
) -> None:
    wires.fall_silent()
    for _ in range(addresses):
        resolve(HERE, wires.port)
    had = len(sockets())
    tried = until(lambda: len(sockets()) == had + addresses, what="an attempt at each address")
    await cancelled(reach(f"http://{FAR}:{wires.port}/"), once=tried)


async def test_a_cancelled_handshake_leaves_nothing(wires: Wires, trusting: ssl.SSLContext) -> None:
    async def begun() -> None:
        await (await wires.accept()).take()

    await cancelled(reach(secured(wires), trusting), once=begun())
    assert await wires.accepted[0].take() == b""


async def cancelled(what: Awaitable[object], *, once: Awaitable[object]) -> None:
    tasks = asyncio.all_tasks()
    task = asyncio.ensure_future(what)
    await once
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == tasks


def secured(wires: Wires) -> str:
    return wires.url.replace("http://", "https://")
