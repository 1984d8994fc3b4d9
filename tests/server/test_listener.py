"""Two real listeners in one process: how they start, and how they stop without loss."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.core.config_values import Address, Duration
from relay.core.errors import ListenFailed
from relay.server.connection_limit import PUBLIC_MAX, ConnectionLimit
from relay.server.http_protocol import PIECE_BYTES, PIPELINED_BYTES, REQUEST_BYTES
from relay.server.listener import Listener, bind
from tests.loop_watch import PlainLoop, UvLoop

GRACE = Duration.parse("5s")
LIMIT = ConnectionLimit(PUBLIC_MAX)


@pytest.fixture(
    params=[("asyncio", {"loop_factory": each}) for each in (UvLoop, PlainLoop)],
    ids=["uvloop", "plain"],
)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class Gate:
    """An app that answers once it is told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.entered.set()
            await self.release.wait()
            await PlainTextResponse("done")(scope, receive, send)
        finally:
            self.ended.set()


async def client_address(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(scope["client"][0])(scope, receive, send)


@contextlib.asynccontextmanager
async def listening(
    app: ASGIApp,
    address: str = "127.0.0.1:0",
    grace: Duration = GRACE,
    limit: ConnectionLimit = LIMIT,
) -> AsyncIterator[Listener]:
    listener = Listener(app, Address(address), grace=grace, limit=limit)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def connected(
    listener: Listener, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, listener.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get(listener: Listener, *headers: str, host: str = "127.0.0.1") -> bytes:
    async with connected(listener, host) as (reader, writer):
        writer.write(request("Connection: close", *headers))
        return await asyncio.wait_for(reader.read(), 5)


def request(*headers: str) -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", "Host: relay", *headers, "", ""]).encode()


def refuses(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) != 0


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_free_port_is_taken_for_port_0_and_named_in_the_url() -> None:
    async with listening(client_address) as listener:
        answer = await get(listener)
        assert listener.port > 0
        assert listener.url == f"http://127.0.0.1:{listener.port}"
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ndate: " in answer
    assert b"server:" not in answer


def test_a_small_part_of_a_response_does_not_wait_for_the_clients_acknowledgement() -> None:
    with (
        bind(Address("127.0.0.1:0")) as bound,
        socket.create_connection(bound.getsockname()),
        bound.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_ipv6_address_is_listened_on() -> None:
    async with listening(client_address, "[::1]:0") as listener:
        assert listener.url == f"http://[::1]:{listener.port}"
        assert (await get(listener, host="::1")).endswith(b"::1")


async def test_a_request_in_flight_is_answered_during_the_stop() -> None:
    gate = Gate()
    async with listening(gate) as listener, connected(listener) as (reader, writer):
        port = listener.port
        writer.write(request())
        await gate.entered.wait()
        stopping = asyncio.create_task(listener.stop())
        await soon(lambda: refuses(port))
        assert not stopping.done()
        gate.release.set()
        answer = await asyncio.wait_for(reader.read(), 5)
        await stopping
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"done")
    assert b"connection: close" in answer


async def test_a_caller_that_ends_its_side_gets_its_answer() -> None:
    gate = Gate()
    async with listening(gate) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        writer.write_eof()
        await gate.entered.wait()
        (connection,) = listener._connections
        await soon(connection.closes_after_response)
        gate.release.set()
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.endswith(b"done")
    assert b"connection: close" in answer


async def test_a_caller_that_leaves_without_its_answer_keeps_nothing_open() -> None:
    gate = Gate()
    async with listening(gate) as listener:
        async with connected(listener) as (_, writer):
            writer.write(request())
            await gate.entered.wait()
        gate.release.set()
        await soon(lambda: not listener._connections)
        await soon(lambda: not listener._exchanges.tasks)


async def test_an_idle_connection_is_closed_by_the_stop() -> None:
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await reader.readuntil(b"127.0.0.1")
        await asyncio.wait_for(listener.stop(), 2)
        assert await asyncio.wait_for(reader.read(), 5) == b""


@pytest.mark.parametrize("asked_before", [False, True])
async def test_an_unread_request_is_answered_by_the_stop(
    asked_before: bool,
) -> None:
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        if asked_before:
            writer.write(request())
            await reader.readuntil(b"127.0.0.1")
        await soon(lambda: bool(listener._connections))
        writer.write(request())
        # No turn of the loop since: it lies with the kernel, and closing now would drop it.
        await listener.stop()
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.endswith(b"127.0.0.1")
    assert b"connection: close" in answer


async def test_a_connection_that_waits_to_be_accepted_is_answered_by_the_stop() -> None:
    async with listening(client_address) as listener:
        # Without a turn of the loop: it lies in the kernel's queue, and closing would reset it.
        with socket.create_connection(("127.0.0.1", listener.port), timeout=5) as caller:
            caller.sendall(request())
            await listener.stop()
            answer = caller.makefile("rb").read()
    assert answer.endswith(b"127.0.0.1")


async def test_while_it_retires_every_connection_gets_a_last_answer() -> None:
    async with (
        listening(client_address) as listener,
        connected(listener) as (used, used_writer),
        connected(listener) as (fresh, fresh_writer),
        connected(listener) as (idle, _),
    ):
        port = listener.port
        used_writer.write(request())
        await used.readuntil(b"127.0.0.1")
        retiring = asyncio.create_task(listener.retire())
        await soon(lambda: refuses(port))
        for reader, writer in ((used, used_writer), (fresh, fresh_writer)):
            writer.write(request())
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.endswith(b"127.0.0.1")
            assert b"connection: close" in answer
        await asyncio.wait_for(retiring, 5)
        assert not idle.at_eof()
        await listener.stop()
        assert await asyncio.wait_for(idle.read(), 5) == b""


async def test_a_listener_in_use_retires_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.listener.RETIRE_POLLS", 30)
    gate = Gate()
    async with listening(gate) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await gate.entered.wait()
        await asyncio.wait_for(listener.retire(), 5)
        gate.release.set()
        await listener.stop()
        assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"done")


async def test_after_the_stop_nothing_is_served() -> None:
    async with listening(client_address) as listener:
        port = listener.port
        assert not refuses(port)
        await listener.stop()
        assert refuses(port)
        await listener.stop()


async def test_a_request_that_outlives_the_grace_is_cut_off_without_an_answer() -> None:
    gate = Gate()
    grace = Duration.parse("150ms")
    async with listening(gate, grace=grace) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await gate.entered.wait()
        await listener.stop()
        assert gate.ended.is_set()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_stop_that_was_cancelled_is_finished_by_the_next() -> None:
    gate = Gate()
    async with listening(gate) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await gate.entered.wait()
        stopping = asyncio.create_task(listener.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait({stopping})
        again = asyncio.create_task(listener.stop())
        done, _ = await asyncio.wait({again}, timeout=0.05)
        assert not done
        gate.release.set()
        await again
        assert b"done" in await asyncio.wait_for(reader.read(), 5)


async def test_two_listeners_live_side_by_side_and_stop_in_order() -> None:
    async with listening(client_address) as admin, listening(client_address) as public:
        public_port, admin_port = public.port, admin.port
        await public.stop()
        assert refuses(public_port)
        assert (await get(admin)).endswith(b"127.0.0.1")
        await admin.stop()
        assert refuses(admin_port)


async def test_sigterm_is_left_to_whoever_runs_the_listeners() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    told = asyncio.Event()
    async with listening(client_address) as listener:
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(told.wait(), 5)
            assert (await get(listener)).startswith(b"HTTP/1.1 200")
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_a_taken_address_is_named_in_the_error() -> None:
    async with listening(client_address) as listener:
        address = Address(f"127.0.0.1:{listener.port}")
        second = Listener(client_address, address, grace=GRACE, limit=LIMIT)
        with pytest.raises(ListenFailed, match=rf"127\.0\.0\.1:{listener.port}: Address already"):
            await second.start()


async def test_head_and_body_of_an_answer_leave_together() -> None:
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
        assert (await reader.read(65536)).endswith(b"\r\n\r\n127.0.0.1")


async def test_a_head_does_not_wait_for_a_body_that_takes_its_time() -> None:
    ready = asyncio.Event()

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ready.wait()
        await send({"type": "http.response.body", "body": b"at last"})

    async with listening(slow) as listener, connected(listener) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        ready.set()
        assert b"at last" in await reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: re"])
async def test_a_connection_that_sends_its_head_too_slowly_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_slow_second_request_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await reader.readuntil(b"127.0.0.1")
        writer.write(b"GET / HT")
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_the_rest_of_a_body_that_nobody_read_cannot_hold_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        writer.write(request("Content-Length: 1000"))
        await reader.readuntil(b"127.0.0.1")
        writer.write(b"drip")
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Have a request answered on its head, and send its body afterwards."""
    writer.write(request("Content-Length: 4"))
    await reader.readuntil(b"127.0.0.1")
    writer.write(b"body")


async def test_a_connection_whose_body_came_late_is_kept_alive_beyond_the_limit_for_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        for _ in range(2):
            await answer_early(reader, writer)
            await asyncio.sleep(0.15)
        assert not reader.at_eof()


async def test_a_head_that_dawdles_after_a_late_body_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        await answer_early(reader, writer)
        await asyncio.sleep(0.01)
        writer.write(b"GET / HT")
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_an_idle_connection_whose_body_came_late_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.listener.KEEP_ALIVE_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        await answer_early(reader, writer)
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_quick_connection_is_kept_alive_beyond_the_limit_for_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    async with listening(client_address) as listener, connected(listener) as (reader, writer):
        for _ in range(2):
            writer.write(request())
            await reader.readuntil(b"127.0.0.1")
            await asyncio.sleep(0.15)
        assert not reader.at_eof()


async def test_a_slow_answer_is_waited_for_beyond_the_limit_for_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.HEAD_TIMEOUT_S", 0.05)
    gate = Gate()
    async with listening(gate) as listener, connected(listener) as (reader, writer):
        writer.write(request())
        await gate.entered.wait()
        await asyncio.sleep(0.15)
        gate.release.set()
        await asyncio.wait_for(reader.readuntil(b"done"), 5)


async def test_of_requests_without_a_pause_only_some_wait_at_a_time_and_all_are_answered() -> None:
    waiting: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        waiting.extend(connection._due for connection in listener._connections)
        await client_address(scope, receive, send)

    count = 5000
    async with listening(app) as listener, connected(listener) as (reader, writer):
        writer.write(request() * count)
        for _ in range(count):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(len("127.0.0.1")) == b"127.0.0.1"
    assert len(waiting) == count
    assert max(waiting) <= PIPELINED_BYTES // REQUEST_BYTES + PIECE_BYTES // len(request()) + 1


async def test_a_client_that_reads_nothing_of_its_responses_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.server.http_protocol.STALL_TIMEOUT_S", 0.1)
    async with listening(client_address) as listener:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.setblocking(False)  # noqa: FBT003  its only parameter
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", listener.port))

            async def ask() -> None:
                while True:
                    await loop.sock_sendall(client, request() * 100)

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(ask(), 30)
            await soon(lambda: not listener._connections)


def test_a_listener_that_has_not_started_has_no_port() -> None:
    with pytest.raises(RuntimeError, match="not been started"):
        _ = Listener(client_address, Address("127.0.0.1:0"), grace=GRACE, limit=LIMIT).port


@pytest.mark.parametrize("address", ["a..b:1", "256.256.256.256:1", "192.0.2.1:0"])
async def test_an_address_that_cannot_be_bound_is_an_error_of_the_relay(address: str) -> None:
    with pytest.raises(ListenFailed, match="cannot listen on " + address):
        await Listener(client_address, Address(address), grace=GRACE, limit=LIMIT).start()
