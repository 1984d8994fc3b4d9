"""The bytes of an exchange, on both loops: in one piece, within bounds, and to the last of them."""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import httpcore
import httpx
import pytest

from relay.core.config_values import Duration
from relay.core.errors import Temporary
from relay.outbound.http import client as http_client
from relay.outbound.http.backend import Backend
from relay.outbound.http.stream import RECEIVED_MAX, Stream
from tests.sinks.far_end import until
from tests.sinks.wire import LOOPS, Wire, Wires, sockets

LARGE = b"0123456789abcdef" * 640 * 1024
PIECE = 64 * 1024
ONE_READ = 256 * 1024
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\nno"


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever breaks, the loop has nothing to say of it."""
    yield
    gc.collect()
    said = (*caplog.get_records("call"), *caplog.get_records("teardown"))
    assert [each.getMessage() for each in said if each.levelno > logging.INFO] == []


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires() as wires:
        yield wires


Both = tuple[Stream, Wire]


@pytest.fixture
async def both(wires: Wires) -> AsyncIterator[Both]:
    """Both ends of one connection."""
    stream = await Backend().connect_tcp("127.0.0.1", wires.port, 5)
    yield stream, await wires.accept()
    await stream.aclose()


@pytest.fixture
async def asked(both: Both) -> Both:
    """Both ends where an answer is due and has begun."""
    await exchange(both, b"1")
    return both


async def exchange(both: Both, answer: bytes) -> None:
    stream, wire = both
    await stream.write(b"a request")
    reading = asyncio.create_task(stream.read(PIECE, 5))
    await wire.take()
    await wire.say(answer)
    assert await reading == answer


@pytest.fixture
async def pool() -> AsyncIterator[httpcore.AsyncConnectionPool]:
    async with httpcore.AsyncConnectionPool(max_connections=1, network_backend=Backend()) as pool:
        yield pool


async def test_head_and_body_leave_in_one_piece(both: Both) -> None:
    stream, wire = both
    for part in (b"head", b"body", b""):
        await stream.write(part)
    reading = asyncio.create_task(stream.read(9, 5))
    assert await wire.take() == b"headbody"
    assert wire.segments == 1
    await wire.say(b"answer")
    assert await reading == b"answer"


async def test_a_request_that_breaks_off_is_not_sent_in_part(
    wires: Wires, pool: httpcore.AsyncConnectionPool
) -> None:
    asked = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"the half of it"
        asked.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(pool.request("POST", wires.url, content=body()))
    wire = await wires.accept()
    await asked.wait()
    sending.cancel()
    assert await wire.take() == b""


async def test_a_large_body_arrives_whole_where_it_is_read_late(both: Both) -> None:
    stream, wire = both
    await stream.write(LARGE)
    reading = asyncio.create_task(stream.read(PIECE, 30))
    first = await wire.take()
    assert _transport(stream).get_write_buffer_size() > 0
    assert first + await wire.take_all(len(LARGE) - len(first)) == LARGE
    await wire.say(ANSWER)
    assert await reading == ANSWER


async def test_an_answer_is_taken_no_faster_than_it_is_read(asked: Both) -> None:
    stream, wire = asked
    telling = asyncio.create_task(wire.say(LARGE * 4))
    await stream.read(1, 5)
    for _ in range(60):
        await until(lambda: stream._is_full, what="as much as it may hold")
        for _ in range(3):
            await asyncio.sleep(0)  # in which more may come
        assert len(stream._received) < RECEIVED_MAX + ONE_READ
        await stream.read(PIECE, 5)
    assert not telling.done()
    telling.cancel()


async def test_a_large_answer_is_read_whole(asked: Both) -> None:
    stream, wire = asked

    async def tell() -> None:
        await wire.say(LARGE)
        wire.close()

    telling = asyncio.create_task(tell())
    answer = bytearray()
    while piece := await stream.read(PIECE, 5):
        answer += piece
    assert answer == LARGE
    await telling


@pytest.mark.parametrize("leave", [Wire.reset, Wire.close, Wire.end])
async def test_an_answer_before_the_end_of_the_request_counts(
    wires: Wires, pool: httpcore.AsyncConnectionPool, leave: Callable[[Wire], None]
) -> None:
    sending = asyncio.create_task(pool.request("POST", wires.url, content=LARGE))
    wire = await wires.accept()
    await wire.take()
    await wire.say(TOO_LARGE)
    leave(wire)
    assert (await sending).status == 413


async def test_a_request_whose_rest_is_never_taken_does_not_hold_up_the_next(
    wires: Wires, pool: httpcore.AsyncConnectionPool
) -> None:
    for _ in range(2):
        sending = asyncio.create_task(pool.request("POST", wires.url, content=LARGE))
        wire = await wires.accept()
        await wire.take()
        await wire.say(TOO_LARGE)
        assert (await sending).status == 413


async def test_a_clean_end_is_the_end_however_often_it_is_read(asked: Both) -> None:
    stream, wire = asked
    await wire.say(b"last")
    wire.close()
    assert [await stream.read(9, 5) for _ in range(3)] == [b"last", b"", b""]


async def test_what_came_before_a_reset_is_read_and_then_the_reset(asked: Both) -> None:
    stream, wire = asked
    reading = asyncio.create_task(stream.read(2, 5))
    await wire.say(b"last")
    wire.reset()
    assert (await reading, await stream.read(9, 5)) == (b"la", b"st")
    for _ in range(2):
        with pytest.raises(httpcore.ReadError) as caught:
            await stream.read(9, 5)
        assert isinstance(caught.value.__cause__, ConnectionResetError)


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        (Wire.close, "broken answer, or none before the connection ended"),
        (Wire.reset, "connection reset"),
    ],
)
async def test_an_end_without_an_answer_has_its_text(
    wires: Wires, leave: Callable[[Wire], None], reason: str
) -> None:
    async with http_client.client(timeout=Duration.parse("5s"), connections=1) as client:
        request = httpx.Request("POST", wires.url, content=b"x")
        sending = asyncio.create_task(http_client.exchange(client, request))
        wire = await wires.accept()
        await wire.take()
        leave(wire)
        with pytest.raises(Temporary) as caught:
            await sending
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "change", [Wire.close, Wire.reset, Wire.end, partial(Wire.say, data=b"unasked")]
)
async def test_an_idle_connection_that_changed_is_not_used_again(
    wires: Wires, pool: httpcore.AsyncConnectionPool, change: Callable[[Wire], object]
) -> None:
    for _ in range(2):
        sending = asyncio.create_task(pool.request("POST", wires.url, content=b"x"))
        wire = await wires.accept()
        await wire.take()
        await wire.say(ANSWER)
        assert (await sending).status == 200
        if asyncio.iscoroutine(changing := change(wire)):
            await changing


@pytest.mark.parametrize("leave", [Wire.close, Wire.reset, Wire.end])
async def test_an_end_is_seen_before_the_loop_looks(
    both: Both, leave: Callable[[Wire], None]
) -> None:
    stream, wire = both
    await exchange(both, ANSWER)
    assert not stream.get_extra_info("is_readable")
    leave(wire)
    assert stream.get_extra_info("is_readable")


async def test_who_does_not_answer_in_time_may_still_answer(asked: Both) -> None:
    stream, wire = asked
    with pytest.raises(httpcore.ReadTimeout):
        await stream.read(9, 0.02)
    await wire.say(b"late")
    assert await stream.read(9, 5) == b"late"


async def test_a_read_that_is_cancelled_leaves_nothing_behind(wires: Wires) -> None:
    before, tasks = sockets(), asyncio.all_tasks()
    stream = await Backend().connect_tcp("127.0.0.1", wires.port, 5)
    reading = asyncio.create_task(stream.read(9, 5))
    wire = await wires.accept()
    await until(lambda: stream._reading is not None, what="the wait for an answer")
    reading.cancel()
    await asyncio.wait({reading})
    await stream.aclose()
    assert await wire.take() == b""
    wire.close()
    await until(lambda: sockets() == before, what="the end of its socket")
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_may_be_closed_at_any_time(both: Both, turns: int) -> None:
    stream, wire = both
    reading = asyncio.create_task(stream.read(9, 5))
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(2):
        await stream.aclose()
    # Would get the number of the socket, and lose it, if that were closed once more.
    with socket.socket() as other:
        assert await reading == b""
        assert await wire.take() == b""
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM


async def test_a_connection_that_was_reset_can_be_closed(both: Both) -> None:
    stream, wire = both
    wire.reset()
    with pytest.raises(httpcore.ReadError):
        await stream.read(9, 5)
    await stream.aclose()


def _transport(stream: Stream) -> asyncio.Transport:
    assert stream._transport is not None
    return stream._transport
