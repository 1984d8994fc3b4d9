"""What holds for the `sqs` sink alone, with moto's server as SQS."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay import samples, settings
from relay.errors import Misconfigured, Refused
from relay.event import LEAD_CAPTURED, Event
from relay.sinks import sqs
from tests.brokers.moto_sqs import MotoSqs
from tests.conftest import ManualClock
from tests.sinks.harness_sqs import SqsHarness


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoSqs]:
    server = MotoSqs(Path(tmp_path_factory.mktemp("moto")))
    server.start()
    yield server
    server.stop()


def build(queue_url: str, **more: Any) -> sqs.SqsSink:
    table = {
        "name": "tested",
        "type": "sqs",
        "queue_url": queue_url,
        "region": "eu-west-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        **more,
    }
    read = msgspec.convert(table, sqs.Settings, dec_hook=settings.decode)
    return sqs.build(read, ManualClock())


async def test_a_fifo_queue_keeps_one_of_two_with_the_same_event_id(
    server: MotoSqs, lead: Event
) -> None:
    url = server.put_queue("one.fifo", FifoQueue="true")
    sink = build(url, endpoint_url=server.url)
    await sink.send(lead)
    await sink.send(lead)
    await sink.close()
    (found,) = server.read(url)
    assert found["Body"].encode() == lead.body
    assert found["Attributes"]["MessageDeduplicationId"] == lead.id
    assert found["Attributes"]["MessageGroupId"] == lead.video_id()
    assert found["MessageAttributes"]["relay-id"]["StringValue"] == lead.id


async def test_a_missing_queue_is_misconfigured_and_found_by_a_check(
    server: MotoSqs, lead: Event
) -> None:
    sink = build(f"{server.url}/123456789012/none", endpoint_url=server.url)
    with pytest.raises(Misconfigured, match="the queue does not exist"):
        await sink.check()
    with pytest.raises(Misconfigured, match="the queue does not exist"):
        await sink.send(lead)
    await sink.close()


async def test_every_event_of_a_crowd_arrives_once(server: MotoSqs) -> None:
    url = server.put_queue("crowd")
    sink = build(url, endpoint_url=server.url)
    ids = [f"evt_{number}" for number in range(60)]
    await asyncio.gather(*(sink.send(samples.event(LEAD_CAPTURED, event_id=i)) for i in ids))
    await sink.close()
    found = [each["MessageAttributes"]["relay-id"]["StringValue"] for each in server.read(url)]
    assert sorted(ids) == sorted(found)


async def test_a_crowd_shares_batches_of_at_most_ten() -> None:
    async with SqsHarness() as far_end:
        sink = far_end.build(ManualClock())
        events = [samples.event(LEAD_CAPTURED, event_id=f"evt_{n}") for n in range(35)]
        await asyncio.gather(*(sink.send(event) for event in events))
        await sink.close()
        sizes = [len(json.loads(each.body)["Entries"]) for each in far_end.far_end.requests]
    assert sorted(sizes) == [5, 10, 10, 10]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"a":"\ufffe"}'.encode(), "a character that SQS does not take"),
        (b'"' + b"x" * sqs.BYTES_MAX + b'"', "bytes are more than"),
    ],
    ids=["character", "size"],
)
async def test_what_sqs_never_takes_is_refused_unsent(
    lead: Event, body: bytes, reason: str
) -> None:
    sink = build("https://sqs.eu-west-1.amazonaws.com/1/q")
    with pytest.raises(Refused, match=reason):
        await sink.send(replace(lead, body=body))


def test_an_event_id_that_does_not_fit_is_hashed(lead: Event) -> None:
    sink = build("https://sqs.eu-west-1.amazonaws.com/1/q.fifo", group="{{ event }}")
    shown = sink.render(replace(lead, id="é" * 200))
    assert len(shown["MessageDeduplicationId"]) == 64
    assert shown["MessageGroupId"] == lead.kind


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"queue_url": "q"}, "^queue_url: "),
        ({"endpoint_url": "x"}, "^endpoint_url: "),
        ({"aws_secret_access_key": None}, "^aws_access_key_id: "),
        ({"group": "{{ nothing }}"}, "^group: "),
    ],
)
def test_a_bad_setting_is_named(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        build(more.pop("queue_url", "https://sqs.eu-west-1.amazonaws.com/1/q"), **more)
