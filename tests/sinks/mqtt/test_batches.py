"""What becomes of a batch of the `mqtt` sink: each event has its own end."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.mqtt_double import MqttDouble, take
from tests.brokers.mqtt_packets import Publish, connack, puback
from tests.sinks.batch import DELIVERED, of_kind, series, told
from tests.sinks.mqtt.conftest import Make, build, ids
from tests.stub_server import until

TOO_LARGE = (Refused, "larger than the broker takes")
DELAYED_ACK_S = 0.04
"""The least time for which Linux delays an acknowledgement."""
FORBIDDEN = (Misconfigured, "the user may not publish to this topic")


def of_kinds(lead: Event, *kinds: str) -> list[Event]:
    return [
        of_kind(event, kind) for event, kind in zip(series(lead, len(kinds)), kinds, strict=True)
    ]


def published(broker: MqttDouble) -> list[str]:
    return [publish.user_properties["relay-id"] for publish in broker.published]


async def until_published(broker: MqttDouble, count: int) -> None:
    await until(lambda: len(broker.published) == count, what=f"{count} of them")


def take_only(*wanted: str) -> Any:
    """Answer what is about these events, and keep silent about the others."""

    def reply(publish: Publish) -> bytes | None:
        is_wanted = publish.user_properties["relay-id"] in wanted
        return take(publish) if is_wanted else None

    return reply


def refuse_by_topic(publish: Publish) -> bytes:
    """A topic is the reason code that it is answered with."""
    return puback(publish.packet_id, int(publish.topic, 16))


def remembered(sink: MqttSink) -> list[Any]:
    """List the messages that are kept until their PUBACK."""
    assert sink._publisher is not None
    return list(sink._publisher._in_flight.values())


async def test_answers_may_come_in_any_order(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.reply = lambda _: None
    sending = asyncio.create_task(sink.send_batch(of_kinds(lead, "00", "87", "97")))
    await until_published(broker, 3)
    for publish in reversed(broker.published):
        broker.say(refuse_by_topic(publish))
    quota = (Temporary, "a quota of the broker is used up")
    assert told(await sending) == [DELIVERED, FORBIDDEN, quota]


async def test_a_mosquitto_takes_a_batch_in_its_order(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    events = series(lead, 32)
    assert told(await make().send_batch(events)) == [DELIVERED] * 32
    assert ids(server) == [event.id for event in events]
    assert server.contacts() == 1


async def test_a_batch_leaves_in_one_piece(broker: MqttDouble, sink: MqttSink, lead: Event) -> None:
    await sink.send(lead)
    assert told(await sink.send_batch(series(lead, 16))) == [DELIVERED] * 16
    assert [data.count(lead.body) for data in broker.received[-2:]] == [1, 16]


async def test_the_kernel_does_not_delay_the_answers_to_a_batch(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    """A mosquitto sends one PUBACK and holds the others back until TCP acknowledges it."""
    server.start_with(more="autosave_on_changes false\nautosave_interval 1800")
    server.silence()  # on its thread, the subscriber takes longer over a message than the sink
    sink = make()
    took: list[float] = []
    for _ in range(40):  # at first, kernels are quick to acknowledge
        started = time.perf_counter()
        await sink.send_batch(series(lead, 16))
        took.append(time.perf_counter() - started)
    assert min(took[20:]) < DELAYED_ACK_S  # all of them take longer otherwise


async def test_a_batch_has_the_time_that_a_small_receive_maximum_takes(
    broker: MqttDouble, lead: Event
) -> None:
    def later(publish: Publish) -> None:
        loop.call_later(0.15, broker.say, puback(publish.packet_id))

    loop = asyncio.get_running_loop()
    broker.connack, broker.reply = connack(ReceiveMaximum=1), later
    sink = build(url=broker.url, topic="{{ event }}", timeout="600ms")
    assert told(await sink.send_batch(series(lead, 6))) == [DELIVERED] * 6
    await sink.close()


async def test_a_batch_above_the_receive_maximum_never_exceeds_it_in_flight(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=3)
    broker.reply = lambda _: None
    events = series(lead, 10)
    sending = asyncio.create_task(sink.send_batch(events))
    for answered in range(10):
        expected = min(answered + 3, 10)
        await until_published(broker, expected)
        assert sink._publisher is not None
        assert sink._publisher._sent == expected
        broker.say(puback(broker.published[answered].packet_id))
    assert told(await sending) == [DELIVERED] * 10
    assert published(broker) == [event.id for event in events]
    assert remembered(sink) == []


async def test_a_mosquitto_with_little_room_takes_large_batches_side_by_side(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    server.start_with(more="max_inflight_messages 2")
    sink, events = make(), series(lead, 100)
    found = await asyncio.gather(*(sink.send_batch(events[n : n + 20]) for n in range(0, 100, 20)))
    assert [each for batch in found for each in told(batch)] == [DELIVERED] * 100
    assert sorted(ids(server)) == sorted(event.id for event in events)
    assert server.contacts() == 1


async def test_a_message_that_cannot_be_encoded_fails_alone_and_takes_no_room(
    broker: MqttDouble, sink: MqttSink, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.connack = connack(ReceiveMaximum=1)
    real = sink._user_properties

    def properties(event: Event) -> dict[str, str]:
        return real(event) | ({"\ud800": ""} if event.id == "evt_1" else {})

    monkeypatch.setattr(sink, "_user_properties", properties)
    outcomes = await sink.send_batch(series(lead, 3))
    assert isinstance(outcomes[1], UnicodeEncodeError)
    assert told([outcomes[0], outcomes[2]]) == [DELIVERED, DELIVERED]
    assert published(broker) == ["evt_0", "evt_2"]
    assert remembered(sink) == []


async def test_a_template_that_fails_on_one_event_is_its_own(make: Make, lead: Event) -> None:
    sink = make(topic="relay/{{ data.video.id }}", events=["lead.captured"])
    first, second = series(lead, 2)
    outcomes = told(await sink.send_batch([first, replace(second, body=b'{"id":"evt_1"}')]))
    assert outcomes[0] == DELIVERED
    kind, reason = outcomes[1]
    assert kind is Refused
    assert reason.startswith("the template of `topic` fails on this event: ")
