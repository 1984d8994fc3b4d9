"""Odd answers: those whose status is certain count, the others are named, and none is repeated."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core import sample_events
from relay.core.clock import SystemClock
from relay.core.config_values import Duration
from relay.core.errors import SinkError, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sink import Outcomes
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import attempt
from relay.outbound.http import odd_answers
from relay.outbound.http.client import HttpClient, HttpEndpoint
from relay.outbound.http.odd_answers import FIELD_BYTES, FIELDS, INTERIM_MAX
from relay.outbound.http.responses import HttpResponse
from tests.sinks.wire import LOOPS, Wire, Wires
from tests.stub_server import DEADLINE_S

OK = b"HTTP/1.1 200 OK\r\n"
Asking = asyncio.Task[HttpResponse]
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return "asyncio", {"loop_factory": request.param}


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires() as wires:
        yield wires


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(timeout_s=5, connections=1)
    yield client
    await client.close()


async def asked(client: HttpClient, wires: Wires) -> tuple[Asking, Wire]:
    asking = asyncio.create_task(client.exchange(HttpEndpoint.of(wires.url), body=b"x"))
    wire = await wires.accept()
    await wire.take()
    return asking, wire


CERTAIN = {
    "two equal lengths": OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "two lengths in one": OK + b"content-length: 2, 2\r\n\r\nok",
    "a space before a colon": OK + b"x-some : thing\r\ncontent-length: 2\r\n\r\nok",
    "a space before the length's colon": OK + b"content-length : 2\r\n\r\nok",
    "a header without a name": OK + b": thing\r\ncontent-length: 2\r\n\r\nok",
    "after an interim answer": CONTINUE + OK + b"content-length: 2\r\nx : y\r\n\r\nok",
    "chunked": OK + b"x : y\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("answer", CERTAIN.values(), ids=list(CERTAIN))
async def test_an_odd_answer_whose_status_is_certain_counts_and_its_connection_ends(
    wires: Wires, client: HttpClient, answer: bytes, pieces: int
) -> None:
    for status in (b"200", b"400"):
        asking, wire = await asked(client, wires)
        said = answer.replace(b"200", status)
        size = -(-len(said) // pieces)
        for start in range(0, len(said), size):
            await wire.say(said[start : start + size])
            await asyncio.sleep(0.002)
        response = await asking
        assert (response.status, response.excerpt) == (int(status), "ok")
        assert await wire.take() == b""


async def test_an_odd_answer_does_not_answer_a_second_request(
    wires: Wires, client: HttpClient
) -> None:
    asking, wire = await asked(client, wires)
    await wire.say(CERTAIN["two equal lengths"] * 2)
    assert (await asking).body == b"ok"
    asking, wire = await asked(client, wires)
    await wire.say(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    assert (await asking).status == 500


IN_PLACE = {
    b"SSH-2.0-OpenSSH_9.2p1\r\n": "an SSH server answers there",
    b"\x15\x03\x01\x00\x02\x02\x46": "the port speaks TLS: the URL has to begin with https://",
    b"\0\0\x12\x04\0\0\0\0\0": "what answers there speaks HTTP/2 alone, not HTTP/1.1",
    b"220 mail.example ESMTP\r\n": "a mail or FTP server answers there",
    b"marked\r\n\r\n": "what answers there does not speak HTTP",
    b"": "the connection ended without an answer",
    CONTINUE: "the connection ended without an answer after an interim one (1xx)",
    CONTINUE * (INTERIM_MAX + 1): "more than 16 interim answers (1xx) came",
    OK + b"marked: x\r\n" * (FIELDS + 72) + b"content-length: 0\r\n\r\n": (
        "the answer has more than 128 headers"
    ),
    OK + b"marked: " + b"x" * FIELD_BYTES + b"\r\ncontent-length: 0\r\n\r\n": (
        "the answer's status line or a header is longer than 16384 bytes"
    ),
    OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok": (
        "the answer has two lengths (Content-Length) that differ"
    ),
    OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n": (
        "the answer has both a length and a transfer encoding"
    ),
    OK + b"content-length: marked\r\n\r\n": "the answer's length (Content-Length) is no number",
    OK + b"marked\r\n\r\n": "a header of the answer is malformed",
    OK + b"x: marked\0\r\ncontent-length: 0\r\n\r\n": "a header of the answer is malformed",
    OK + b"mar": "the connection ended in the head of the answer",
    OK + b"content-length: 9\r\n\r\nmark": (
        "the connection ended in the body of the answer, after 4 of 9 bytes"
    ),
    OK + b"transfer-encoding: chunked\r\n\r\n9\r\nmark": (
        "the body of the answer is cut off or malformed"
    ),
    OK + b"transfer-encoding: chunked\r\n\r\nmarked\r\n": (
        "the body of the answer is cut off or malformed"
    ),
    b"HTTP/1.1 2x0 OK\r\n\r\n": "the answer's status line is none of HTTP/1.1",
}


@pytest.mark.parametrize(("said", "reason"), IN_PLACE.items(), ids=range(len(IN_PLACE)))
async def test_what_came_in_place_of_an_answer_is_named_and_not_repeated(
    wires: Wires, client: HttpClient, said: bytes, reason: str
) -> None:
    asking, wire = await asked(client, wires)
    try:
        await wire.say(said)
        wire.end()
    except OSError:
        pass  # the client has hung up already
    with pytest.raises(Temporary) as caught:
        await asking
    assert caught.value.reason == reason
    assert caught.value.about_event


UNENDED = {
    b"": "no answer within 0.3 s",
    OK + b"x: marked\0\r\n": ("no whole answer within 0.3 s: a header of the answer is malformed"),
    b"HTT": "no whole answer within 0.3 s: what came ends in the head of the answer",
    OK + b"marked: x\r\n": (
        "no whole answer within 0.3 s: what came ends in the head of the answer"
    ),
    OK + b"x : y\r\nmark": (
        "no whole answer within 0.3 s: what came ends in the head of the answer"
    ),
    CONTINUE: (
        "no whole answer within 0.3 s: what came ends without an answer after an interim one (1xx)"
    ),
    OK + b"content-length: 9\r\n\r\nmark": (
        "no whole answer within 0.3 s: what came ends in the body of the answer, after 4 of 9 bytes"
    ),
}


@pytest.mark.parametrize(("said", "reason"), UNENDED.items(), ids=range(len(UNENDED)))
async def test_what_came_of_an_answer_without_an_end_is_named_at_the_timeout(
    wires: Wires, client: HttpClient, said: bytes, reason: str
) -> None:
    (error,) = await attempted(client, wires, said)
    assert str(error) == reason


@pytest.mark.parametrize("line", [b"marked\r\n", b"a b: x\r\n"])
async def test_a_malformed_head_is_refused_before_its_end(
    wires: Wires, client: HttpClient, line: bytes
) -> None:
    asking, wire = await asked(client, wires)
    await wire.say(OK + line)
    with pytest.raises(Temporary, match="a header of the answer is malformed"):
        await asyncio.wait_for(asking, DEADLINE_S)


async def attempted(client: HttpClient, wires: Wires, said: bytes) -> list[SinkError | None]:
    """Make an attempt as a dispatcher does, whose destination says this and no more."""

    async def send(_: Sequence[Event]) -> Outcomes:
        asking, wire = await asked(client, wires)
        try:
            await wire.say(said)
            await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])
        raise AssertionError("it was answered")

    deadlines, lead = Deadlines(SystemClock()), sample_events.event(LEAD_CAPTURED)
    results = await attempt(send, "s", [lead], limit=Duration.parse("300ms"), deadlines=deadlines)
    return [error for _, error in results]


@given(st.binary(max_size=200) | st.builds(lambda rest: OK + rest, st.binary(max_size=200)))
def test_whatever_came_has_a_name_and_is_mended_once(received: bytes) -> None:
    assert odd_answers.fault(received)
    answer = odd_answers.mended(received)
    if answer is not None:
        assert not odd_answers.is_mendable_yet(received)
        assert odd_answers.mended(answer) == answer


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2\r\ncontent-length: 3",
        b"content-length: 2\r\ntransfer-encoding: chunked",
        b"content-length: 2\r\n folded: x",
        b"no colon",
        b"a b: x",
        b"a : x\0",
    ],
)
def test_a_head_that_may_mean_something_else_is_not_mended(head: bytes) -> None:
    assert odd_answers.mended(OK + head + b"\r\n\r\nok") is None
