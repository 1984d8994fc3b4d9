"""Answers that cannot be read: none of them is ever a bug of the sink."""

from collections.abc import AsyncIterator, Callable

import pytest

from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Sink
from tests.brokers.pubsub_double import said
from tests.outbound.http.test_surplus_responses import of_http, of_pubsub, of_slack, of_sqs
from tests.sinks.far_end import FarEnd, Reply
from tests.sinks.pubsub.test_tokens import Google, google

__all__ = ["google"]

Build = Callable[[FarEnd], Sink]

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
async def far_end() -> AsyncIterator[FarEnd]:
    async with FarEnd() as far_end:
        yield far_end


@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize("build", [of_slack, of_pubsub, of_sqs])
async def test_an_answer_that_cannot_be_read_is_the_far_ends_fault(
    far_end: FarEnd, lead: Event, build: Build, status: int
) -> None:
    sink = build(far_end)
    for document in DOCUMENTS:
        far_end.reply = lambda _, body=document: Reply(status, body)  # type: ignore[misc]
        with pytest.raises(SinkError):
            await sink.send(lead)
    await sink.close()


@pytest.mark.parametrize("build", [of_slack, of_pubsub, of_sqs])
async def test_a_check_that_is_answered_oddly_is_no_bug(far_end: FarEnd, build: Build) -> None:
    sink = build(far_end)
    for document in DOCUMENTS:
        far_end.reply = lambda _, body=document: Reply(503, body)  # type: ignore[misc]
        try:
            await sink.check()
        except SinkError as error:
            assert type(error) is Temporary  # noqa: PT017  a check may also find nothing wrong
    await sink.close()


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("build", [of_http, of_slack, of_pubsub])
async def test_an_absurd_retry_after_hides_no_status(
    far_end: FarEnd, lead: Event, build: Build, date: str
) -> None:
    far_end.reply = lambda _: Reply(503, headers={"retry-after": date})
    sink = build(far_end)
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
async def test_a_token_that_cannot_be_read_is_no_bug(google: Google, token: bytes) -> None:
    google.far_end.reply = lambda _: Reply(200, token, {"content-type": "application/json"})
    tokens = google.login()
    with pytest.raises(SinkError, match="no token"):
        await tokens.headers()
    await tokens.close()


@pytest.mark.parametrize("seconds", [0, -5, "60"])
async def test_a_token_that_ends_at_once_is_used_once(google: Google, seconds: object) -> None:
    document = {"access_token": "t", "token_type": "Bearer", "expires_in": seconds}
    google.far_end.reply = lambda _: said(document)
    tokens = google.login()
    assert (await tokens.headers())["authorization"] == "Bearer t"
    await tokens.close()
