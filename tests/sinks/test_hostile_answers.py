"""Answers that cannot be read: none of them is ever a bug of the sink."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from relay.core.config_values import Secret
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Sink
from relay.sinks.nats import sink as nats
from relay.sinks.redis import sink as redis
from tests.brokers.pubsub_double import said
from tests.conftest import ManualClock
from tests.outbound.http.test_surplus_responses import of_http, of_pubsub, of_slack, of_sqs
from tests.sinks.pubsub.test_tokens import Google, google
from tests.stub_server import Reply, StubServer

__all__ = ["google"]

Build = Callable[[StubServer], Sink]

DOCUMENTS = [
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 5000,
    b'{"Successful":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"error":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messageIds":[{"a":[[]]}]}',
    b"9" * 6000,
    b'{"Successful":[{"Id":1e400}]}',
    b"NaN",
    b"null",
    b'"\\ud800"',
    b"\xff\xfe",
    b"<a>" * 3000,
]
DATES = [
    "Mon, 02 Mar 2026 09:31:30 +99999999999999",
    "Mon, 01 Jan 0001 00:00:00 +9999",
    "Mon, 02 Mar 99999 09:29:00 GMT",
    "-5",
    "9" * 5000,
]


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        yield destination


@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize("build", [of_slack, of_pubsub, of_sqs])
async def test_an_answer_that_cannot_be_read_is_the_destinations_fault(
    destination: StubServer, lead: Event, build: Build, status: int
) -> None:
    sink = build(destination)
    for document in DOCUMENTS:
        destination.reply = lambda _, body=document: Reply(status, body)  # type: ignore[misc]
        with pytest.raises(SinkError):
            await sink.send(lead)
    await sink.close()


@pytest.mark.parametrize("build", [of_slack, of_pubsub, of_sqs])
async def test_an_unexpected_answer_to_a_check_is_not_a_bug(
    destination: StubServer, build: Build
) -> None:
    sink = build(destination)
    for document in DOCUMENTS:
        destination.reply = lambda _, body=document: Reply(503, body)  # type: ignore[misc]
        try:
            await sink.check()
        except SinkError as error:
            assert type(error) is Temporary  # noqa: PT017  a check may also find nothing wrong
    await sink.close()


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """Listen on the port that it yields; `answer` is given what came, at first nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b""))
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(answer(data))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def fails_temporarily(sink: Sink, lead: Event) -> None:
    for trial in (sink.send(lead), sink.check()):
        with pytest.raises(Temporary) as caught:
            await trial
        assert caught.value.reason in (
            "what answers there is not a NATS server",
            "what answers there is not a Redis server",
        )
    await sink.close()


NATS_INFO = b'INFO {"max_payload":1048576,"headers":true}\r\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"x" * 70_000,
        b"INFO []\r\n",
        b"INFO 1\r\n",
        b"INFO \xff\r\n",
        b"INFO " + b'{"a":' * 10_000 + b"\r\n",
        *(
            b'INFO {"%b":%b}\r\n' % (name, value)
            for name, value in (
                (b"max_payload", b'"much"'),
                (b"max_payload", b"null,"),
                (b"headers", b"[]"),
                (b"nonce", b"5"),
                (b"tls_required", b'"yes"'),
            )
        ),
        NATS_INFO + b"-ERR\r\n",
        NATS_INFO + b"-ERR \xff\r\n",
        NATS_INFO + b"x" * 70_000,
    ],
)
async def test_a_server_that_does_not_speak_nats_is_named_as_such(
    lead: Event, answer: bytes
) -> None:
    async with answering(lambda data: b"" if data else answer) as port:
        settings: Any = nats.Settings(
            name="s", type="nats", servers=Secret(f"nats://127.0.0.1:{port}")
        )
        await fails_temporarily(nats.build(settings, ManualClock()), lead)


@pytest.mark.parametrize("urls", [b'["["]', b"5", b"[[]]"])
async def test_other_servers_of_a_nats_cluster_may_be_named_in_any_way(
    lead: Event, urls: bytes
) -> None:
    info = b'INFO {"connect_urls":%b}\r\n' % urls
    async with answering(
        lambda data: b"" if data else info + b"-ERR 'maximum connections exceeded'\r\n"
    ) as port:
        settings: Any = nats.Settings(
            name="s", type="nats", servers=Secret(f"nats://127.0.0.1:{port}")
        )
        sink = nats.build(settings, ManualClock())
        with pytest.raises(Temporary, match="takes no more connections"):
            await sink.send(lead)
        await sink.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"+" + b"x" * 70_000,
        b"$-5\r\n",
        b"$x\r\n",
        b":x\r\n",
        b"*x\r\n",
        b"?\r\n",
        b"*1\r\n" * 5000,
    ],
)
async def test_a_server_that_does_not_speak_redis_is_named_as_such(
    lead: Event, answer: bytes
) -> None:
    async with answering(lambda data: answer if data else b"") as port:
        await fails_temporarily(redis_at(port), lead)


@pytest.mark.parametrize(
    "info", [b":5", b"*0", b"$3\r\nabc", b"$17\r\nredis_version:abc", b"$15\r\nredis_version:8"]
)
async def test_a_redis_server_with_unreadable_info_is_not_taken_for_redis(
    lead: Event, info: bytes
) -> None:
    def answer(data: bytes) -> bytes:
        commands = len(re.findall(rb"^\*\d+\r$", data, re.MULTILINE))
        return info + b"\r\n" if b"$4\r\nINFO\r\n" in data else b"+OK\r\n" * commands

    async with answering(answer) as port:
        sink = redis_at(port)
        with pytest.raises(Temporary, match=r"not a Redis server|confirms nothing"):
            await sink.send(lead)
        await sink.close()


def redis_at(port: int) -> Sink:
    settings: Any = redis.Settings(name="s", type="redis", url=Secret(f"redis://127.0.0.1:{port}"))
    return redis.build(settings, ManualClock())


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("build", [of_http, of_slack, of_pubsub])
async def test_an_absurd_retry_after_does_not_hide_the_status(
    destination: StubServer, lead: Event, build: Build, date: str
) -> None:
    destination.reply = lambda _: Reply(503, headers={"retry-after": date})
    sink = build(destination)
    with pytest.raises(Temporary) as caught:
        await sink.send(lead)
    assert (caught.value.status, caught.value.retry_after_ms) == (503, None)
    await sink.close()


@pytest.mark.parametrize(
    "token",
    [
        *DOCUMENTS,
        *(
            b'{"access_token":"t","token_type":"Bearer","expires_in":%b}' % value
            for value in (b"1e15", b"-1e15", b'"%b"' % (b"9" * 400), b'"soon"', b"[[]]", b"{}")
        ),
    ],
)
async def test_an_unreadable_token_is_not_a_bug(google: Google, token: bytes) -> None:
    google.destination.reply = lambda _: Reply(200, token, {"content-type": "application/json"})
    tokens = google.login()
    with pytest.raises(SinkError, match="no token"):
        await tokens.headers()
    await tokens.close()


@pytest.mark.parametrize("seconds", [0, -5, "60"])
async def test_a_token_that_ends_at_once_is_used_once(google: Google, seconds: object) -> None:
    document = {"access_token": "t", "token_type": "Bearer", "expires_in": seconds}
    google.destination.reply = lambda _: said(document)
    tokens = google.login()
    assert (await tokens.headers())["authorization"] == "Bearer t"
    await tokens.close()
