"""The bytes of an exchange, on both loops: in one piece, within bounds, and to the last of them."""

import asyncio
import gc
import gzip
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from relay.core.errors import SinkError, Temporary
from relay.outbound.http.client import READ_BYTES, HttpClient, HttpEndpoint
from relay.outbound.http.odd_answers import FIELD_BYTES, FIELDS
from relay.outbound.http.responses import HttpResponse
from tests.sinks.wire import LOOPS, Wire, Wires, sockets
from tests.stub_server import until

LARGE = b"0123456789abcdef" * 640 * 1024
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\nno"
NONE = "the connection ended without an answer"
IN_HEAD = "the connection ended in the head of the answer"
IN_BODY = "the connection ended in the body of the answer, after 4 of 9 bytes"
TOO_LONG = f"the answer's status line or a header is longer than {FIELD_BYTES} bytes"
TOO_MANY = f"the answer has more than {FIELDS} headers"
RESET = "connection reset"


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"loop_factory": request.param}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever breaks, the loop has nothing to say of it."""
    yield
    gc.collect()
    said = (*caplog.get_records("call"), *caplog.get_records("teardown"))
    assert [record.getMessage() for record in said if record.levelno > logging.INFO] == []


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires() as wires:
        yield wires


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(timeout_s=5, connections=1)
    yield client
    await client.close()


Sending = asyncio.Task[HttpResponse]


def send(client: HttpClient, wires: Wires, body: bytes = b"x") -> Sending:
    return asyncio.create_task(client.exchange(HttpEndpoint.of(wires.url), body=body))


async def begin(client: HttpClient, wires: Wires, body: bytes = b"x") -> tuple[Sending, Wire]:
    """Send a request on a new connection, of which the peer has taken a part."""
    sending = send(client, wires, body)
    wire = await wires.accept()
    await wire.take()
    return sending, wire


async def test_head_and_body_leave_in_one_piece(wires: Wires, client: HttpClient) -> None:
    sending = send(client, wires, b"the body")
    wire = await wires.accept()
    request = await wire.take()
    assert request.startswith(b"POST / HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\nthe body")
    assert wire.segments == 1
    await wire.say(ANSWER)
    assert (await sending).status == 200


async def test_a_large_body_arrives_whole_where_it_is_read_late(
    wires: Wires, client: HttpClient
) -> None:
    sending = send(client, wires, LARGE)
    wire = await wires.accept()
    first = await wire.take()
    size = first.index(b"\r\n\r\n") + 4 + len(LARGE)
    assert (first + await wire.take_all(size - len(first))).endswith(LARGE)
    await wire.say(ANSWER)
    assert (await sending).status == 200


@pytest.mark.parametrize("size", [READ_BYTES // 2, READ_BYTES])
async def test_a_long_answer_in_pieces_is_read_whole(
    wires: Wires, client: HttpClient, size: int
) -> None:
    for _ in range(2):
        sending = send(client, wires)
        if not wires.accepted:
            await wires.accept()
        wire = wires.accepted[0]
        await wire.take()
        await wire.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % size)
        await asyncio.sleep(0)
        await wire.say(b"\r\n" + LARGE[: size // 2])
        await asyncio.sleep(0)
        await wire.say(LARGE[size // 2 : size])
        assert (await sending).body == LARGE[:size]
    assert len(wires.accepted) == 1


async def test_a_compressed_answer_is_not_unpacked(wires: Wires, client: HttpClient) -> None:
    bomb = gzip.compress(bytes(100 * READ_BYTES))
    sending, wire = await begin(client, wires)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    await wire.say(head + bomb)
    assert (await sending).body == bomb


async def test_a_head_within_bounds_is_read(wires: Wires, client: HttpClient) -> None:
    sending, wire = await begin(client, wires)
    long = b"x-long: " + b"x" * (FIELD_BYTES - 100) + b"\r\n"
    await wire.say(ANSWER[:-2] + b"x-more: x\r\n" * (FIELDS - 10) + long + b"\r\n")
    assert (await sending).status == 200


@pytest.mark.parametrize(
    ("endless", "reason"),
    [
        (b"x-more: x\r\n", TOO_MANY),
        (b"x", TOO_LONG),
        (b"x-longer: " + b"x" * 2 * FIELD_BYTES + b"\r\n", TOO_LONG),
    ],
)
async def test_an_endless_head_closes_the_connection(
    wires: Wires, client: HttpClient, endless: bytes, reason: str
) -> None:
    sending, wire = await begin(client, wires)

    async def tell() -> None:
        await wire.say(b"HTTP/1.1 200 OK\r\n")
        while True:
            await wire.say(endless * 100)

    telling = asyncio.create_task(tell())
    with pytest.raises(Temporary) as caught:
        await sending
    assert caught.value.reason == reason
    with pytest.raises(OSError, match=r"reset|pipe"):
        await telling


@pytest.mark.parametrize("leave", [Wire.reset, Wire.close, Wire.end])
async def test_an_answer_before_the_end_of_the_request_counts(
    wires: Wires, client: HttpClient, leave: Callable[[Wire], None]
) -> None:
    sending, wire = await begin(client, wires, LARGE)
    await wire.say(TOO_LARGE)
    leave(wire)
    assert (await sending).status == 413


async def test_a_request_whose_rest_is_never_taken_does_not_hold_up_the_next(
    wires: Wires, client: HttpClient
) -> None:
    before = sockets()
    for _ in range(2):
        sending, wire = await begin(client, wires, LARGE)
        await wire.say(TOO_LARGE)
        assert (await sending).status == 413
    for wire in wires.accepted:
        wire.close()
    await until(lambda: sockets() == before, what="the end of their sockets")


@pytest.mark.parametrize(
    ("said", "leave", "reason"),
    [
        (b"", Wire.close, NONE),
        (b"", Wire.reset, RESET),
        (ANSWER[:20], Wire.close, IN_HEAD),
        (ANSWER[:20], Wire.reset, RESET),
        (ANSWER.replace(b": 0", b": 9") + b"part", Wire.close, IN_BODY),
    ],
)
async def test_an_end_without_an_answer_has_its_text(
    wires: Wires, client: HttpClient, said: bytes, leave: Callable[[Wire], None], reason: str
) -> None:
    sending, wire = await begin(client, wires)
    await wire.say(said)
    leave(wire)
    with pytest.raises(Temporary) as caught:
        await sending
    assert caught.value.reason == reason
    assert caught.value.about_event


@pytest.mark.parametrize(
    "change", [Wire.close, Wire.reset, Wire.end, partial(Wire.say_now, data=b"unasked")]
)
async def test_an_idle_connection_that_changed_is_not_used_again(
    wires: Wires, client: HttpClient, change: Callable[[Wire], object]
) -> None:
    for _ in range(2):
        sending, wire = await begin(client, wires)
        await wire.say(ANSWER)
        assert (await sending).status == 200
        # Without a turn of the loop: nobody has been told when the next request is made.
        change(wire)


@pytest.mark.parametrize("body", [b"x", LARGE], ids=["small", "large"])
async def test_a_cancelled_exchange_leaves_nothing_behind(
    wires: Wires, client: HttpClient, body: bytes
) -> None:
    before, tasks = sockets(), asyncio.all_tasks()
    sending, wire = await begin(client, wires, body)
    sending.cancel()
    await asyncio.wait({sending})
    # The other end is open still, and has not read the request.
    await until(lambda: len(sockets() - before) == 1, what="the end of our socket")
    wire.close()
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_client_may_be_closed_at_any_time(
    wires: Wires, client: HttpClient, turns: int
) -> None:
    before = sockets()
    sending = send(client, wires)
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(2):
        await client.close()
    with pytest.raises(SinkError):
        await sending
    for wire in wires.accepted:
        wire.close()
    await until(lambda: sockets() == before, what="the end of its socket")


async def test_a_closed_client_has_closed_its_connections(wires: Wires, client: HttpClient) -> None:
    before = sockets()
    sending, wire = await begin(client, wires)
    await wire.say(ANSWER)
    await sending
    await client.close()
    assert await wire.take() == b""
    wire.close()
    await until(lambda: sockets() == before, what="the end of its socket")
