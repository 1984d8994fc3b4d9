"""What holds for the `sqs` sink alone, with moto's server as SQS."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import Misconfigured, Refused
from relay.core.event import WEBHOOK_TEST, Event
from relay.sinks.sqs import sink as sqs
from relay.sinks.sqs.sink import SqsSink
from tests.brokers.moto_sqs import REGION, MotoSqs
from tests.sinks.conformance import built
from tests.sinks.conftest import Closing
from tests.sinks.servers import shared
from tests.stub_server import StubServer, until

AWS = "https://sqs.eu-west-1.amazonaws.com/1/q"

Make = Callable[..., SqsSink]


def build(queue_url: str = AWS, **more: Any) -> SqsSink:
    login = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    sink: SqsSink = built("sqs", queue_url=queue_url, region=REGION, **login | more)
    return sink


@pytest.fixture(scope="module")
def server() -> MotoSqs:
    return shared(MotoSqs)


@pytest.fixture
def make(server: MotoSqs, closing: Closing) -> Make:
    return lambda queue_url, **more: closing(
        build(queue_url, **{"endpoint_url": server.url, **more})
    )


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(each["MessageAttributes"]["relay-id"]["StringValue"] for each in messages)


async def test_only_the_first_sink_reads_the_description_of_sqs(
    server: MotoSqs, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put_queue("described")
    await make(url).send(lead)

    def read(*_: object) -> None:
        raise AssertionError("a file of botocore was read again")

    monkeypatch.setattr(JSONFileLoader, "load_file", read)
    await make(url).send(lead)
    assert len(server.read(url)) == 2


async def test_the_description_of_sqs_is_read_beside_the_event_loop(
    server: MotoSqs, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_file, threads = JSONFileLoader.load_file, set[str]()

    def read(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return load_file(*arguments)

    monkeypatch.setattr(JSONFileLoader, "load_file", read)
    sqs._service_descriptions.cache_clear()
    await make(server.put_queue("beside")).send(lead)
    assert threads
    assert threading.current_thread().name not in threads


async def test_a_fifo_queue_keeps_one_of_two_with_the_same_event_id(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    url = server.put_queue("one.fifo", FifoQueue="true")
    sink = make(url)
    await sink.send(lead)
    await sink.send(lead)
    (found,) = server.read(url)
    assert found["Body"].encode() == lead.body
    assert found["Attributes"]["MessageDeduplicationId"] == f"main/{lead.id}"
    assert found["Attributes"]["MessageGroupId"] == lead.video_id()
    assert ids([found]) == [lead.id]


async def test_without_a_video_the_group_in_a_fifo_queue_is_the_event_alone(
    server: MotoSqs, make: Make
) -> None:
    url = server.put_queue("alone.fifo", FifoQueue="true")
    await make(url).send(sample_events.event(WEBHOOK_TEST, event_id="evt_test"))
    (found,) = server.read(url)
    assert found["Attributes"]["MessageGroupId"] == "evt_test"


async def test_a_group_of_ones_own_is_for_both_kinds_of_queue(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    fifo = server.put_queue("group.fifo", FifoQueue="true")
    fair = server.put_queue("group")
    for url in (fifo, fair):
        await make(url, group="{{ source }}").send(lead)
    (in_fifo,), (in_fair,) = server.read(fifo), server.read(fair)
    assert in_fifo["Attributes"]["MessageGroupId"] == lead.source
    assert in_fair["Attributes"]["MessageGroupId"] == lead.source
    assert "MessageDeduplicationId" not in in_fair["Attributes"]


async def test_a_fifo_queue_has_the_events_of_a_video_in_their_order(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    url = server.put_queue("in-order.fifo", FifoQueue="true")
    names = [f"evt_{number}" for number in range(30)]
    await make(url).send_batch([replace(lead, id=name) for name in names])
    found = server.read(url)
    assert [each["MessageAttributes"]["relay-id"]["StringValue"] for each in found] == names


@pytest.mark.parametrize(
    ("concurrency", "batch"), [(1, 1), (4, 4), (10, 10), (19, 10), (25, 10), (40, 20), (100, 50)]
)
def test_batches_fill_their_requests(concurrency: int, batch: int) -> None:
    assert build(concurrency=concurrency)._settings.batch() == batch


@pytest.mark.parametrize("concurrency", [1, 15, 40, 100])
async def test_all_requests_of_full_batches_are_in_flight_at_once(
    lead: Event, concurrency: int
) -> None:
    async with StubServer() as destination:
        destination.reply = lambda _: None
        sink = build(endpoint_url=destination.url(""), concurrency=concurrency)
        config_values = sink._settings
        batches = config_values.slots() // config_values.batch()
        events = [replace(lead, id=f"evt_{n}") for n in range(config_values.batch())]
        sending = [asyncio.create_task(sink.send_batch(events)) for _ in range(batches)]
        sizes = [len(events[at : at + 10]) for at in range(0, len(events), 10)] * batches
        await until(lambda: len(destination.requests) == len(sizes), what="all requests")
        sent = [len(json.loads(request.body)["Entries"]) for request in destination.requests]
        assert sorted(sent) == sorted(sizes)
        for task in sending:
            task.cancel()
        await asyncio.wait(sending)
        await sink.close()


async def test_a_missing_queue_is_misconfigured_until_it_is_there(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    sink = make(f"{server.url}/123456789012/late")
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match="the queue does not exist"):
            await trial
    url = server.put_queue("late")
    await sink.check()
    await sink.send(lead)
    assert ids(server.read(url)) == [lead.id]


@pytest.mark.parametrize(
    ("user", "key", "actions"),
    [
        ("unknown", {"aws_access_key_id": "AKIAUNKNOWN"}, ("sqs:*",)),
        ("mistyped", {"aws_secret_access_key": "marked-wrong"}, ("sqs:*",)),
        ("reader", {}, ("sqs:ReceiveMessage",)),
    ],
    ids=["unknown key", "wrong secret", "no right to send"],
)
async def test_credentials_that_do_not_fit_are_misconfigured(
    server: MotoSqs, make: Make, lead: Event, *, user: str, key: dict[str, str], actions: Any
) -> None:
    url = server.put_queue("guarded")
    access_key, secret = server.put_user(user, *actions)
    own = {"aws_access_key_id": access_key, "aws_secret_access_key": secret}
    server.look_at_credentials()
    try:
        sink = make(url, **own | key)
        for trial in (sink.check(), sink.send(lead)):
            with pytest.raises(Misconfigured, match="403: look at the credentials") as caught:
                await trial
            assert caught.value.status == 403
    finally:
        server.take_any_credentials()
    assert server.read(url) == []


async def test_credentials_that_fit_are_used(server: MotoSqs, make: Make, lead: Event) -> None:
    url = server.put_queue("open")
    # For a batch AWS asks for sqs:SendMessage, but moto for a right that AWS does not know.
    rights = ("sqs:SendMessage", "sqs:SendMessageBatch", "sqs:GetQueueAttributes")
    access_key, secret = server.put_user("sender", *rights)
    server.look_at_credentials()
    try:
        sink = make(url, aws_access_key_id=access_key, aws_secret_access_key=secret)
        await sink.check()
        await sink.send(lead)
    finally:
        server.take_any_credentials()
    assert ids(server.read(url)) == [lead.id]


async def test_no_credentials_anywhere_are_misconfigured(
    server: MotoSqs, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    sink = make(server.put_queue("q"), aws_access_key_id=None, aws_secret_access_key=None)
    with pytest.raises(Misconfigured, match="NoCredentialsError: look at the AWS credentials"):
        await sink.send(lead)


async def test_messages_that_are_too_large_together_are_sent_separately(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    url = server.put_queue("large")
    sink = make(url)
    body = b'"' + b"x" * 600_000 + b'"'
    await sink.send_batch([replace(lead, id=f"e{n}", body=body) for n in range(3)])
    assert ids(server.read(url)) == ["e0", "e1", "e2"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"a":"\ufffe"}'.encode(), "a character that SQS does not take"),
        (b'"' + b"x" * sqs.BYTES_MAX + b'"', "bytes are more than the 1048576 that SQS takes"),
    ],
    ids=["character", "size"],
)
async def test_a_message_that_sqs_never_accepts_is_refused_unsent(
    lead: Event, body: bytes, reason: str
) -> None:
    sink = build()
    with pytest.raises(Refused, match=reason):
        await sink.send(replace(lead, body=body))


async def test_a_fifo_queue_keeps_the_events_of_two_sources_with_one_id(
    server: MotoSqs, make: Make, lead: Event
) -> None:
    url = server.put_queue("sources.fifo", FifoQueue="true")
    sink = make(url)
    await sink.send(lead)
    await sink.send(replace(lead, source="second"))
    assert len([*server.read(url), *server.read(url)]) == 2


def test_an_event_id_that_does_not_fit_is_hashed(lead: Event) -> None:
    sink = build(f"{AWS}.fifo", group="{{ event }}")
    shown = sink.render(replace(lead, id="é" * 200))
    assert len(shown["MessageDeduplicationId"]) == 64
    assert shown["MessageGroupId"] == lead.kind
