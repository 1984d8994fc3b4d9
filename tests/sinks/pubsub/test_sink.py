"""What holds for the `pubsub` sink alone: batches, order, limits, settings."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.sinks.pubsub import sink as pubsub
from tests.brokers.pubsub_double import PROJECT, said
from tests.conftest import ManualClock
from tests.sinks.pubsub.harness import PubsubHarness
from tests.stub_server import Reply, Request, until

ONE_KEY = {"ordering_key": "one"}


@pytest.fixture
async def destination() -> AsyncIterator[PubsubHarness]:
    async with PubsubHarness() as harness:
        yield harness


def build(destination: PubsubHarness, **changed: Any) -> pubsub.PubsubSink:
    return pubsub.build(destination.settings(**changed), ManualClock())  # type: ignore[arg-type]


def lead(number: int, *, video: str = "vid_1", note: str = "") -> Event:
    event = sample_events.event(LEAD_CAPTURED, event_id=f"evt_{number}")
    body = json.dumps({"data": {"video": {"id": video}, "note": note}})
    return replace(event, body=body.encode())


def sizes(destination: PubsubHarness) -> list[int]:
    return [len(request) for request in destination.double.requests]


def test_no_two_batches_are_in_flight_at_once() -> None:
    destination = PubsubHarness()
    destination.destination.port = 1
    settings = destination.settings()
    assert settings.slots() // settings.batch() == 1


async def test_a_batch_with_one_ordering_key_is_one_request_in_its_order(
    destination: PubsubHarness,
) -> None:
    sink = build(destination)
    await sink.send_batch([lead(number) for number in range(200)])
    await sink.close()
    assert sizes(destination) == [200]
    assert [message.id for message in destination.messages()] == [f"evt_{n}" for n in range(200)]


async def test_a_request_holds_messages_of_one_ordering_key_only(
    destination: PubsubHarness,
) -> None:
    sink = build(destination)
    await sink.send_batch([lead(n, video=f"vid_{n % 3}") for n in range(30)])
    await sink.close()
    assert sizes(destination) == [10, 10, 10]
    keys = [{message["orderingKey"] for message in each} for each in destination.double.requests]
    assert sorted(keys, key=str) == [{"vid_0"}, {"vid_1"}, {"vid_2"}]


async def test_a_request_holds_messages_to_one_topic_only(destination: PubsubHarness) -> None:
    sink = build(destination, topic="relay-{{ source }}", ordering_key="")
    destination.double.topics = {"relay-0", "relay-1"}
    outcomes = await sink.send_batch([replace(lead(n), source=f"{n % 3}") for n in range(9)])
    await sink.close()
    assert sizes(destination) == [3, 3]
    assert [type(each) is Misconfigured for each in outcomes] == [False, False, True] * 3


async def test_requests_of_one_ordering_key_wait_for_each_other(
    destination: PubsubHarness,
) -> None:
    def never(request: Request) -> Reply | None:
        return None if b"vid_slow" in request.body else destination.double.answer(request)

    sink = build(destination, timeout="500ms")
    destination.destination.reply = never
    # Base64 makes a third more of it, so that no two share a request.
    slow = [lead(number, video="vid_slow", note="x" * 4_000_000) for number in range(3)]
    outcomes = await sink.send_batch([*slow, lead(3), lead(4)])
    await sink.close()
    assert len(destination.destination.requests) == 2
    assert [str(each) for each in outcomes[:3]] == ["no answer within 0.5 s"] * 3
    assert [message.id for message in destination.messages()] == ["evt_3", "evt_4"]


async def test_without_ordering_keys_all_share_a_request(destination: PubsubHarness) -> None:
    sink = build(destination, ordering_key="")
    await sink.send_batch([lead(n, video=f"vid_{n}") for n in range(50)])
    await sink.close()
    assert sizes(destination) == [50]
    assert not [each for each in destination.double.messages if "orderingKey" in each]


async def test_a_request_stays_below_ten_megabytes(destination: PubsubHarness) -> None:
    sink = build(destination)
    big = "x" * 3_000_000
    await sink.send_batch([lead(number, note=big) for number in range(5)])
    await sink.close()
    assert sizes(destination) == [2, 2, 1]
    assert [message.id for message in destination.messages()] == [f"evt_{n}" for n in range(5)]


async def test_each_message_has_the_id_at_its_place(destination: PubsubHarness) -> None:
    sink = build(destination)
    outcomes = await sink.send_batch([lead(number) for number in range(4)])
    await sink.close()
    assert outcomes == [SinkResponse(200, str(1_000_000 + n)) for n in range(4)]


async def test_nothing_is_delivered_by_an_answer_with_too_few_ids(
    destination: PubsubHarness,
) -> None:
    sink = build(destination)
    destination.destination.reply = lambda _: said({"messageIds": ["1", "2", "3"]})
    outcomes = await sink.send_batch([lead(number) for number in range(4)])
    await sink.close()
    assert [type(each) for each in outcomes] == [Temporary] * 4


async def test_a_message_without_an_id_is_sent_again_alone(destination: PubsubHarness) -> None:
    sink = build(destination)
    destination.destination.reply = lambda _: said({"messageIds": ["1", "", "3"]})
    outcomes = await sink.send_batch([lead(number) for number in range(3)])
    await sink.close()
    assert [isinstance(each, Temporary) for each in outcomes] == [False, True, False]


async def test_what_makes_up_a_message(destination: PubsubHarness, lead: Event) -> None:
    sink = build(destination)
    await sink.send(lead)
    await sink.close()
    (message,) = destination.double.messages
    assert base64.b64decode(message["data"]) == lead.body
    assert message["orderingKey"] == lead.video_id()
    assert message["attributes"] == {
        "relay-id": lead.id,
        "relay-event": lead.kind,
        "relay-source": lead.source,
        "relay-received-at": "2026-03-02T09:30:00.000Z",
    }


async def test_cloudevents_attributes_have_the_prefix_of_the_binding(
    destination: PubsubHarness, lead: Event
) -> None:
    sink = build(destination, format="cloudevents")
    await sink.send(lead)
    await sink.close()
    attributes = destination.double.messages[0]["attributes"]
    assert (attributes["ce-id"], attributes["ce-type"]) == (lead.id, lead.kind)
    assert (attributes["ce-specversion"], attributes["ce-source"]) == ("1.0", lead.source)
    assert attributes["content-type"] == "application/json"


async def test_an_ordering_key_that_is_too_long_for_pubsub_is_hashed(
    destination: PubsubHarness,
) -> None:
    sink = build(destination, format="cloudevents")
    await sink.send(lead(1, video="v" * 2000))
    await sink.close()
    (message,) = destination.double.messages
    assert len(message["orderingKey"]) == 64
    assert message["attributes"]["ce-subject"] == message["orderingKey"]


async def test_no_ordering_key_is_a_persons_address(
    destination: PubsubHarness, lead: Event
) -> None:
    sink = build(destination)
    address = lead.document()["data"]["email"]
    assert address not in json.dumps({**sink.render(lead), "body": ""})
    await sink.close()


async def test_a_message_over_the_limit_is_refused_unsent(destination: PubsubHarness) -> None:
    sink = build(destination)
    with pytest.raises(Refused, match="bytes are more than the 10 MB"):
        await sink.send(lead(1, note="x" * pubsub.MESSAGE_MAX))
    await sink.close()
    assert destination.contacts() == 0


async def test_a_message_that_pubsub_finds_too_large_is_refused(destination: PubsubHarness) -> None:
    sink = build(destination)
    with pytest.raises(Refused, match="400 INVALID_ARGUMENT: Pub/Sub does not take the message"):
        await sink.send(lead(1, note="x" * (pubsub.MESSAGE_MAX - 10_000)))
    await sink.send(lead(2))
    await sink.close()
    assert [message.id for message in destination.messages()] == ["evt_2"]


async def test_the_topic_may_depend_on_the_event(destination: PubsubHarness, lead: Event) -> None:
    sink = build(destination, topic="relay-{{ event }}+100%")
    destination.double.topics = {"relay-lead.captured+100%"}
    await sink.send(lead)
    assert sink.render(lead)["topic"] == f"projects/{PROJECT}/topics/relay-lead.captured+100%"
    await sink.close()
    assert len(destination.messages()) == 1


async def test_a_missing_topic_is_told_apart_by_a_check_and_parks(
    destination: PubsubHarness, lead: Event
) -> None:
    sink = build(destination, topic="none")
    for attempt in (sink.check, lambda: sink.send(lead)):
        with pytest.raises(Misconfigured, match="the topic or its project does not exist"):
            await attempt()
    await sink.close()


async def test_a_missing_permission_is_told_apart_by_a_check_and_parks(
    destination: PubsubHarness, lead: Event
) -> None:
    sink = build(destination)
    destination.double.may_publish = False
    with pytest.raises(Misconfigured, match=r"lack pubsub\.topics\.publish on the topic relay"):
        await sink.check()
    with pytest.raises(Misconfigured, match="403 PERMISSION_DENIED"):
        await sink.send(lead)
    destination.double.may_publish = True
    await sink.send(lead)
    await sink.close()


async def test_the_reason_that_google_gives_is_reported(
    destination: PubsubHarness, lead: Event
) -> None:
    sink = build(destination)
    error = {"status": "PERMISSION_DENIED", "details": [{"reason": "SERVICE_DISABLED"}]}
    destination.destination.reply = lambda _: said({"error": error}, 403)
    with pytest.raises(Misconfigured, match="403 PERMISSION_DENIED, SERVICE_DISABLED: "):
        await sink.send(lead)
    await sink.close()


@pytest.mark.parametrize("error", ["text", {"status": 1}, {"status": "ODD"}, {"details": 1}])
async def test_an_error_in_an_unknown_form_is_classified_by_its_status(
    destination: PubsubHarness, lead: Event, error: object
) -> None:
    sink = build(destination)
    destination.destination.reply = lambda _: said({"error": error}, 503)
    with pytest.raises(Temporary, match="503"):
        await sink.send(lead)
    await sink.close()


async def test_a_response_that_trickles_in_is_abandoned_in_time(lead: Event) -> None:
    left = asyncio.Event()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.transport.abort()
        left.set()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    harness = PubsubHarness()
    harness.destination.port = server.sockets[0].getsockname()[1]
    sink = build(harness, timeout="200ms")
    with pytest.raises(Temporary, match=r"no whole answer within 0\.2 s"):
        async with asyncio.timeout(2):
            await sink.send(lead)
    await sink.close()
    async with asyncio.timeout(2):
        await left.wait()
    server.close()
    await server.wait_closed()


async def test_an_emulator_takes_events_without_credentials(
    destination: PubsubHarness, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination.double.emulator = True
    address = f"127.0.0.1:{destination.destination.port}"
    sink = build(destination, credentials=None, emulator_host=address)
    await sink.check()
    await sink.send(lead)
    await sink.close()
    monkeypatch.setenv(pubsub.EMULATOR, address)
    sink = build(destination, credentials=None, endpoint_url="https://pubsub.invalid")
    await sink.send(lead)
    await sink.close()
    assert len(destination.messages()) == 2
    assert not [each for each in destination.destination.requests if "authorization" in each.header]


async def test_an_emulator_without_the_topic_is_found_by_a_check(
    destination: PubsubHarness,
) -> None:
    destination.double.emulator = True
    sink = build(
        destination, emulator_host=f"127.0.0.1:{destination.destination.port}", topic="none"
    )
    with pytest.raises(Misconfigured, match="the topic or its project does not exist"):
        await sink.check()
    await sink.close()


async def test_many_keys_are_many_requests_at_once(destination: PubsubHarness) -> None:
    sink = build(destination, concurrency=20)
    destination.destination.reply = lambda _: None
    events = [lead(n, video=f"vid_{n}") for n in range(20)]
    sending = asyncio.create_task(sink.send_batch(events))
    await until(lambda: len(destination.destination.requests) == 20, what="twenty requests")
    sending.cancel()
    await asyncio.wait({sending})
    await until(lambda: destination.destination.open == 0, what="the end of the requests")
    await sink.close()


def test_a_bad_emulator_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = PubsubHarness()
    destination.destination.port = 1
    monkeypatch.setenv(pubsub.EMULATOR, "http://localhost:8085")
    with pytest.raises(ValueError, match=r"^emulator_host: PUBSUB_EMULATOR_HOST: "):
        build(destination)


def test_a_reply_is_what_the_reference_says() -> None:
    """The double's own promise, which the tests above rest on."""
    harness = PubsubHarness()
    reply = harness.double.answer(
        Request("POST", f"/v1/projects/{PROJECT}/topics/relay:publish", (), b"{}")
    )
    assert isinstance(reply, Reply)
    assert reply.status == 401
    assert json.loads(reply.body)["error"]["status"] == "UNAUTHENTICATED"
