"""Surplus bytes of a destination: none of them is ever an answer to the next event.

Each destination answers the first request with more than its answer, and fails every later one: a
second success would be a delivery that never was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from relay.core import config_values
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Sink
from relay.outbound.http.client import HttpClient, HttpEndpoint
from relay.outbound.http.guard import Framing, GuardedConnector
from relay.outbound.http.odd_answers import INTERIM_MAX
from relay.outbound.http.responses import HttpResponse
from relay.sinks.http import sink as http
from relay.sinks.slack import sink as slack
from tests.brokers.pubsub_double import said
from tests.sinks.pubsub.harness import PubsubHarness
from tests.sinks.pubsub.test_sink import build as build_pubsub
from tests.sinks.slack.test_sink import StillClock
from tests.sinks.sqs.harness import reply as sqs_reply
from tests.sinks.sqs.test_errors import entries, take
from tests.sinks.sqs.test_sink import build as build_sqs
from tests.sinks.wire import LOOPS, Wire, Wires
from tests.stub_server import Reply, Request, StubServer, until

EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE = b"0123456789abcdef" * 640 * 1024
FAILURE = Reply(500)


@dataclass(frozen=True)
class Raw(Reply):
    """An answer byte by byte, behind which the connection stays open."""

    raw: bytes = b""

    def encode(self) -> bytes:
        return self.raw


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"loop_factory": request.param}


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        yield destination


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires() as wires:
        yield wires


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(timeout_s=5, connections=1)
    yield client
    await client.close()


async def post(client: HttpClient, url: str, body: bytes = b"x") -> HttpResponse:
    return await client.exchange(HttpEndpoint.of(url), body=body)


BEHIND = {
    "another-answer": EMPTY + EMPTY,
    "half-an-answer": EMPTY + EMPTY[:20],
    "garbage": EMPTY + b"\0garbage",
    "one-byte": EMPTY + b"H",
    "more-than-the-length": EMPTY.replace(b": 0", b": 2") + b"okok",
    "behind-the-last-chunk": CHUNKED + CHUNKED,
    "garbage-behind-the-last-chunk": CHUNKED + b"0\r\n\r\n",
    "a-body-of-a-204": EMPTY.replace(b"200 OK", b"204 No") + EMPTY,
    "an-interim-answer": EMPTY + CONTINUE,
    "an-answer-to-no-version": EMPTY + b"ICY 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("answer", BEHIND.values(), ids=list(BEHIND))
async def test_bytes_after_a_response_do_not_answer_the_next_request(
    destination: StubServer, client: HttpClient, answer: bytes
) -> None:
    destination.reply = lambda _: Raw(raw=answer) if len(destination.requests) == 1 else FAILURE
    assert (await post(client, destination.url())).status // 100 == 2
    await until(lambda: destination.open == 0, what="the end of that connection")
    assert (await post(client, destination.url())).status == 500
    assert (len(destination.requests), destination.accepted) == (2, 2)


@pytest.mark.parametrize("late", [EMPTY, EMPTY[:20], b"\0", b"\r\n"])
async def test_bytes_on_an_idle_connection_close_it(
    wires: Wires, client: HttpClient, late: bytes
) -> None:
    first = await use_once(wires, client)
    await first.say(late)
    with suppress(ConnectionResetError):
        assert await first.take() == b""
    asking = asyncio.create_task(post(client, wires.url))
    second = await wires.accept()
    await second.take()
    await second.say(EMPTY.replace(b"200", b"500"))
    assert (await asking).status == 500


async def use_once(wires: Wires, client: HttpClient) -> Wire:
    """Leave an idle connection behind."""
    asking = asyncio.create_task(post(client, wires.url))
    wire = await wires.accept()
    await wire.take()
    await wire.say(EMPTY)
    assert (await asking).status == 200
    return wire


async def test_a_response_that_the_kernel_holds_before_its_request_does_not_count(
    wires: Wires, client: HttpClient
) -> None:
    first = await use_once(wires, client)
    # No turn of the loop after it, so that nothing has read it when the request is made.
    first.say_now(EMPTY)
    asking = asyncio.create_task(post(client, wires.url))
    second = await wires.accept()
    await second.take()
    await second.say(EMPTY.replace(b"200", b"500"))
    assert (await asking).status == 500


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_response_right_before_its_request_does_not_count(
    wires: Wires, client: HttpClient, monkeypatch: pytest.MonkeyPatch, *, is_used: bool
) -> None:
    if is_used:
        await use_once(wires, client)
    connect = GuardedConnector.connect

    async def early(*args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        connection = await connect(*args, **kwargs)
        (wires.accepted[0] if is_used else wires.accept_now()).say_now(EMPTY)
        return connection

    monkeypatch.setattr(GuardedConnector, "connect", early)
    with pytest.raises(Temporary, match="an answer came before the request"):
        await post(client, wires.url)
    with suppress(ConnectionResetError):
        assert await wires.accepted[0].take() == b""


async def test_every_request_is_announced_to_the_guard_before_its_first_byte(
    wires: Wires, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[bool] = []
    expect = Framing.expect

    def note(framing: Framing) -> None:
        announced.append(framing.is_due)
        expect(framing)

    monkeypatch.setattr(Framing, "expect", note)
    wire = await use_once(wires, client)
    assert announced == [False]
    asking = asyncio.create_task(post(client, wires.url, b"{}"))
    await wire.take()
    assert announced == [False, False]
    await wire.say(EMPTY)
    await asking


async def ask_twice(wires: Wires, client: HttpClient) -> tuple[Wire, bytes, asyncio.Task[Any]]:
    """A large second request on a used connection, of which the destination has taken a part."""
    wire = await use_once(wires, client)
    asking = asyncio.create_task(post(client, wires.url, LARGE))
    return wire, await wire.take(), asking


@pytest.mark.parametrize("answer", [EMPTY, EMPTY.replace(b"200", b"410")])
async def test_a_response_before_the_end_of_a_later_request_does_not_count(
    wires: Wires, client: HttpClient, answer: bytes
) -> None:
    wire, _, asking = await ask_twice(wires, client)
    await wire.say(answer)
    with pytest.raises(Temporary, match="an answer came before the request"):
        await asking
    # On a connection of its own the same request is answered as it may be: by its head alone.
    asking = asyncio.create_task(post(client, wires.url, LARGE))
    wire = await wires.accept()
    await wire.take()
    await wire.say(answer)
    assert (await asking).status == int(answer[9:12])


async def test_a_later_request_that_is_answered_when_it_was_read_is_answered(
    wires: Wires, client: HttpClient
) -> None:
    wire, begun, asking = await ask_twice(wires, client)
    await wire.take_all(begun.index(b"\r\n\r\n") + 4 + len(LARGE) - len(begun))
    await wire.say(EMPTY)
    assert (await asking).status == 200


@pytest.mark.parametrize(("interim", "taken"), [(INTERIM_MAX, True), (INTERIM_MAX + 1, False)])
async def test_interim_answers_are_skipped_but_not_without_end(
    destination: StubServer, client: HttpClient, interim: int, taken: bool
) -> None:
    destination.reply = lambda _: Raw(raw=CONTINUE * interim + EMPTY)
    for _ in range(2):
        asking = post(client, destination.url())
        if taken:
            assert (await asking).status == 200
        else:
            with pytest.raises(Temporary, match="more than 16 interim answers"):
                await asking
    assert destination.accepted == (1 if taken else 2)


async def test_an_exchange_that_is_in_order_keeps_its_connection(
    destination: StubServer, client: HttpClient
) -> None:
    answers = [EMPTY, CHUNKED, CONTINUE + EMPTY, EMPTY.replace(b"200", b"204"), EMPTY * 1]
    destination.reply = lambda _: Raw(raw=answers[len(destination.requests) - 1])
    for _ in answers:
        assert (await post(client, destination.url())).status < 300
    assert destination.accepted == 1


def of_http(destination: StubServer) -> Sink:
    return http.build(made(http.Settings, destination, "http", "/"), StillClock())


def of_slack(destination: StubServer) -> Sink:
    return slack.build(
        made(slack.Settings, destination, "slack", "/services/T0/B0/x"), StillClock()
    )


def of_pubsub(destination: StubServer) -> Sink:
    harness = PubsubHarness()
    harness.destination = destination
    return build_pubsub(harness)


def of_sqs(destination: StubServer) -> Sink:
    return build_sqs(destination.url("/1/q"), endpoint_url=destination.url())


def made(kind: Any, destination: StubServer, name: str, path: str) -> Any:
    document = {"name": name, "type": name, "url": destination.url(path)}
    return msgspec.convert(document, kind, dec_hook=config_values.decode)


SINKS: dict[str, tuple[Callable[[StubServer], Sink], Callable[[Request], Reply]]] = {
    "http": (of_http, lambda _: Reply()),
    "slack": (of_slack, lambda _: Reply(body=b"ok")),
    "pubsub": (of_pubsub, lambda _: said({"messageIds": ["1"]})),
    "sqs": (of_sqs, lambda request: sqs_reply(take(entries(request)))),
}


@pytest.mark.parametrize(("build", "success"), SINKS.values(), ids=list(SINKS))
async def test_no_sink_takes_a_second_answer_for_that_to_the_next_event(
    destination: StubServer,
    lead: Event,
    build: Callable[[StubServer], Sink],
    success: Callable[[Request], Reply],
) -> None:
    def answer(request: Request) -> Reply:
        twice = Raw(raw=success(request).encode() * 2)
        return twice if len(destination.requests) == 1 else FAILURE

    destination.reply = answer
    sink = build(destination)
    await sink.send(lead)
    with pytest.raises(SinkError):
        await sink.send(lead)
    assert len(destination.requests) == 2
    await sink.close()
