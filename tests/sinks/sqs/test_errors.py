"""How the `sqs` sink reads answers, and what it asks: with a double, as moto gives no such answers.

The answers are those of SQS's JSON protocol (AWS JSON 1.0, SendMessageBatch).
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ConnectTimeoutError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    ReadTimeoutError,
)
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.sinks.sqs import sink as sqs
from relay.sinks.sqs.errors import classify
from relay.sinks.sqs.sink import SqsSink
from tests.brokers.authority import Authority
from tests.sinks.conformance import error_of
from tests.sinks.conftest import Closing
from tests.sinks.sqs.harness import reply
from tests.sinks.sqs.test_sink import build
from tests.stub_server import Reply, Request, StubServer, until

Answers = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Double(StubServer):
    """Answers as told to what the entries of a batch are."""

    def answer(self, answers: Answers) -> None:
        self.reply = lambda request: reply(answers(entries(request)))

    def error(self, status: int, code: str) -> None:
        self.reply = lambda _: reply({"__type": f"com.amazonaws.sqs#{code}"}, status)

    @property
    def batches(self) -> list[list[dict[str, Any]]]:
        return [entries(request) for request in self.requests]


def entries(request: Request) -> list[dict[str, Any]]:
    return list(json.loads(request.body)["Entries"])


def take(batch: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Successful": [{"Id": each["Id"], "MessageId": "m"} for each in batch]}


def events(count: int) -> list[Event]:
    return [sample_events.event(LEAD_CAPTURED, event_id=f"evt_{number}") for number in range(count)]


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    async with Double() as double:
        double.answer(take)
        yield double


@pytest.fixture
def sink(double: Double, closing: Closing) -> SqsSink:
    return closing(build(double.url("/1/q"), endpoint_url=double.url()))


async def test_a_crowd_shares_batches_of_at_most_ten(double: Double, sink: SqsSink) -> None:
    await sink.send_batch(events(35))
    assert sorted(len(batch) for batch in double.batches) == [5, 10, 10, 10]


async def test_no_batch_is_larger_than_sqs_takes(
    double: Double, sink: SqsSink, lead: Event
) -> None:
    body = b'"' + b"x" * 300_000 + b'"'
    found = await sink.send_batch([replace(lead, body=body)] * 7)
    assert found == [SinkResponse(200, "m")] * 7
    assert sorted(len(batch) for batch in double.batches) == [1, 3, 3]
    for batch in double.batches:
        assert sum(size(each) for each in batch) <= sqs.BYTES_MAX


async def test_a_fifo_queue_gets_the_requests_of_a_group_one_after_another(
    double: Double,
) -> None:
    sink = build(double.url("/1/q.fifo"), endpoint_url=double.url(), group="{{ source }}")
    kinds = ["a", "b", "a", "c", "a", "d"] * 6
    given = [replace(each, source=kind) for each, kind in zip(events(36), kinds, strict=True)]
    items = {place: sink._prepare(event) for place, event in enumerate(given)}
    chains = [[list(part) for part in chain] for chain in sink._split(items)]
    groups = [{kinds[place] for part in chain for place in part} for chain in chains]
    assert sorted(kind for chain in groups for kind in chain) == ["a", "b", "c", "d"]
    assert sorted(len(part) for chain in chains for part in chain) == [2, 6, 8, 10, 10]
    for chain in chains:
        sent = [place for part in chain for place in part]
        assert sent == sorted(sent)
    assert sink._settings.slots() == sink._settings.batch()
    await sink.close()


async def test_large_messages_take_no_more_connections_than_there_are(
    sink: SqsSink, lead: Event
) -> None:
    body = b'"' + b"x" * 600_000 + b'"'
    items = {place: sink._prepare(replace(lead, body=body)) for place in range(20)}
    assert [len(chain) for chain in sink._split(items)] == [10, 10]


def size(entry: dict[str, Any]) -> int:
    """Of a message as SQS counts it: names, types and values of attributes too."""
    attributes = [
        name + each["DataType"] + each["StringValue"]
        for name, each in entry["MessageAttributes"].items()
    ]
    return len(entry["MessageBody"].encode()) + len("".join(attributes).encode())


async def test_each_event_of_a_batch_gets_its_own_outcome(double: Double, sink: SqsSink) -> None:
    def answers(batch: list[dict[str, Any]]) -> dict[str, Any]:
        first, second, third, fourth = (each["Id"] for each in batch)
        return {
            "Successful": [{"Id": third, "MessageId": "taken"}],
            "Failed": [
                {"Id": second, "SenderFault": False, "Code": "InternalError"},
                {"Id": first, "SenderFault": True, "Code": "InvalidMessageContents"},
                {"Id": fourth, "SenderFault": True, "Code": "KMS.AccessDeniedException"},
            ],
        }

    double.answer(answers)
    found = await sink.send_batch(events(4))
    assert [type(each) for each in found] == [Refused, Temporary, SinkResponse, Misconfigured]
    assert found[2] == SinkResponse(200, "taken")
    assert len(double.requests) == 1


@pytest.mark.parametrize(
    ("code", "sender_fault", "kind"),
    [
        ("InternalError", False, Temporary),
        ("RequestThrottled", True, Temporary),
        ("InvalidMessageContents", True, Refused),
        ("AWS.SimpleQueueService.NonExistentQueue", True, Misconfigured),
        ("AccessDenied", False, Misconfigured),
        ("KMS.DisabledException", True, Misconfigured),
        ("KMS.InvalidStateException", True, Misconfigured),
        ("KMS.ThrottlingException", True, Temporary),
        ("KMS.NeverHeardOfException", True, Temporary),
        ("UnsupportedOperation", True, Misconfigured),
    ],
)
async def test_a_failed_entry_is_classified_by_whose_fault_it_is_and_names_the_code(
    double: Double, sink: SqsSink, lead: Event, *, code: str, sender_fault: bool, kind: Any
) -> None:
    failed = {"Code": code, "SenderFault": sender_fault, "Message": "ada@example.com"}
    double.answer(lambda batch: {"Failed": [{"Id": each["Id"], **failed} for each in batch]})
    error = await error_of(sink, lead)
    assert type(error) is kind
    said = code.removeprefix("AWS.SimpleQueueService.").removesuffix("Exception")
    assert error.reason.startswith(f"{said}: ")
    assert "ada" not in error.reason + error.answer


async def test_what_is_no_code_is_not_repeated(double: Double, sink: SqsSink, lead: Event) -> None:
    failed = {"Code": "ada@example.com", "SenderFault": True}
    double.answer(lambda batch: {"Failed": [{"Id": each["Id"], **failed} for each in batch]})
    assert (await error_of(sink, lead)).reason == "SQS does not take the message"


async def test_an_event_that_the_answer_does_not_name_is_sent_again(
    double: Double, sink: SqsSink
) -> None:
    double.answer(lambda batch: take(batch[:-1]))
    found = await sink.send_batch(events(3))
    assert [type(each) for each in found] == [SinkResponse, SinkResponse, Temporary]
    assert str(found[2]) == "SQS did not say what became of the message"
    double.answer(take)
    assert await sink.send(events(3)[2]) == SinkResponse(200, "m")


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (400, "QueueDoesNotExist", Misconfigured, "QueueDoesNotExist: the queue does not exist"),
        (403, "InvalidClientTokenId", Misconfigured, "InvalidClientTokenId: the access key is unk"),
        (400, "SignatureDoesNotMatch", Misconfigured, "SignatureDoesNotMatch: the secret key or"),
        (400, "ExpiredTokenException", Misconfigured, "ExpiredToken: the credentials have expired"),
        (400, "AccessDeniedException", Misconfigured, "AccessDenied: the credentials may not do"),
        (400, "KmsDisabled", Misconfigured, "KmsDisabled: the queue's key is disabled"),
        (400, "KMS.DisabledException", Misconfigured, "KMS.Disabled: the queue's key is disabled"),
        (400, "KMS.NotFoundException", Misconfigured, "KMS.NotFound: the queue's key does not exi"),
        (400, "KMS.AccessDeniedException", Misconfigured, "KMS.AccessDenied: the credentials may"),
        (400, "KMS.InvalidStateException", Misconfigured, "KMS.InvalidState: the queue's key is"),
        (400, "KmsInvalidState", Misconfigured, "KmsInvalidState: the queue's key is in a state"),
        (400, "InvalidState", Misconfigured, "InvalidState: the queue's key is in a state"),
        (400, "KMS.InvalidKeyUsageException", Misconfigured, "KMS.InvalidKeyUsage: the queue's ke"),
        (400, "InvalidKeyUsage", Misconfigured, "InvalidKeyUsage: the queue's key is not one"),
        (400, "KMS.OptInRequired", Misconfigured, "KMS.OptInRequired: the account is not signed"),
        (403, "OptInRequired", Misconfigured, "OptInRequired: the account is not signed up for S"),
        (400, "MissingParameter", Misconfigured, "MissingParameter: the queue wants more: the n"),
        (400, "UnsupportedOperation", Misconfigured, "UnsupportedOperation: the queue does not"),
        (400, "RequestExpired", Misconfigured, "RequestExpired: our clock is wrong, or the requ"),
        (400, "KMS.ThrottlingException", Temporary, "KMS.Throttling: SQS answers 400"),
        (404, "NotFound", Misconfigured, "NotFound: SQS answers 404: look at `queue_url` and `en"),
        (400, "InvalidMessageContents", Refused, "InvalidMessageContents: SQS does not take the"),
        (403, "RequestThrottled", Temporary, "RequestThrottled: SQS answers 403"),
        (503, "ServiceUnavailable", Temporary, "ServiceUnavailable: SQS answers 503"),
        (400, "of a body: ada@example.com", Temporary, "SQS answers 400"),
        (400, "x" * 200, Temporary, "SQS answers 400"),
    ],
)
async def test_an_error_says_what_to_do(
    double: Double, sink: SqsSink, lead: Event, *, status: int, code: str, kind: Any, reason: str
) -> None:
    double.error(status, code)
    error = await error_of(sink, lead)
    assert (type(error), error.status) == (kind, status)
    assert error.reason.startswith(reason)


async def test_after_a_rejected_login_the_credentials_are_read_anew(
    double: Double, lead: Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def answer(request: Request) -> Reply:
        if "Credential=new/" in request.header["authorization"]:
            return reply(take(entries(request)))
        return reply({"__type": "com.amazon.coral.service#InvalidClientTokenId"}, 403)

    double.reply = answer
    table = {"aws_access_key_id": None, "aws_secret_access_key": None}
    sink = build(double.url("/1/q"), endpoint_url=double.url(), **table)
    file.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = x\n")
    assert type(await error_of(sink, lead)) is Misconfigured
    file.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = x\n")
    assert await sink.send(lead) == SinkResponse(200, "m")
    await sink.close()


async def test_a_replaced_client_ends_once_its_sends_have_answers(
    double: Double, sink: SqsSink, lead: Event
) -> None:
    double.answer(take)
    await sink.send(lead)
    double.reply = lambda _: None
    waiting = asyncio.create_task(sink.send(lead))
    await until(lambda: len(double.requests) == 2, what="the request that waits")
    double.error(400, "ExpiredToken")
    assert type(await error_of(sink, lead)) is Misconfigured
    assert not waiting.done()
    double.answer(take)
    await sink.send(lead)
    await double.stop()
    assert type((await asyncio.gather(waiting, return_exceptions=True))[0]) is Temporary


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (NoCredentialsError(), Misconfigured, "look at the AWS credentials and the region"),
        (NoRegionError(), Misconfigured, "look at the AWS credentials and the region"),
        (ConnectTimeoutError(endpoint_url="x"), Temporary, "no answer in time"),
        (ReadTimeoutError(endpoint_url="x"), Temporary, "no answer in time"),
        (ConnectionResetError(), Temporary, "could not connect, or the connection was lost"),
        (
            IncompleteReadError(actual_bytes=1, expected_bytes=2),
            Temporary,
            "no answer that can be understood",
        ),
    ],
    ids=repr,
)
def test_an_error_of_the_library_has_a_meaning(
    error: Exception, kind: type[SinkError], text: str
) -> None:
    meaning = classify(error)
    assert type(meaning) is kind
    assert text in str(meaning)


def test_a_bug_stays_visible() -> None:
    bug = KeyError("Entries")
    assert classify(bug) is bug


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"Successful":[{}]}'])
async def test_an_invalid_answer_is_temporary(
    double: Double, sink: SqsSink, lead: Event, body: bytes
) -> None:
    double.reply = lambda _: Reply(200, body, {"content-type": "application/x-amz-json-1.0"})
    assert type(await error_of(sink, lead)) is Temporary


@pytest.mark.parametrize("trusts", [True, False])
async def test_tls_is_verified(
    lead: Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, trusts: bool
) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("sqs"))
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    if trusts:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
    async with Double(tls=context) as double:
        double.answer(take)
        sink = build(double.url("/1/q"), endpoint_url=double.url())
        (found,) = await asyncio.gather(sink.send(lead), return_exceptions=True)
        await sink.close()
    if trusts:
        assert found == SinkResponse(200, "m")
    else:
        assert type(found) is Misconfigured
        assert found.reason.startswith("the endpoint's TLS certificate does not verify: ")


async def test_an_endpoint_that_speaks_no_tls_is_named(lead: Event) -> None:
    async def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(speak_plainly, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sink = build(f"{url}/1/q", endpoint_url=url)
    error = await error_of(sink, lead)
    reason = "the endpoint does not speak TLS at this port"
    assert (type(error), error.reason) == (Temporary, reason)
    await sink.close()
    server.close()
