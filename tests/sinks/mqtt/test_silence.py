"""Batches of the `mqtt` sink at brokers that fall silent or leave, and where they are cancelled."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.errors import Refused, Temporary
from relay.core.event import Event
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mqtt_double import MqttDouble, take
from tests.brokers.mqtt_packets import Publish, connack, disconnect, puback
from tests.sinks.batch import DELIVERED, series, told
from tests.sinks.conftest import Closing
from tests.sinks.mqtt.conftest import build
from tests.sinks.mqtt.test_batches import (
    FORBIDDEN,
    TOO_LARGE,
    published,
    remembered,
    take_only,
    until_published,
)
from tests.stub_server import until

LATE = (Temporary, "no answer within 1 s")
LOST = (Temporary, "the connection was lost")


@pytest.fixture
def short_timeout_sink(broker: MqttDouble, closing: Closing) -> MqttSink:
    return closing(build(url=broker.url, topic="{{ event }}", timeout="1s"))


async def test_only_unanswered_messages_time_out(
    broker: MqttDouble, short_timeout_sink: MqttSink, lead: Event
) -> None:
    broker.reply = take_only("evt_0", "evt_1", "evt_2")
    started = time.monotonic()
    outcomes = await short_timeout_sink.send_batch(series(lead, 5))
    assert told(outcomes) == [DELIVERED] * 3 + [LATE] * 2
    assert time.monotonic() - started >= 1


async def test_a_broker_that_falls_silent_in_a_batch_is_disconnected(
    broker: MqttDouble, short_timeout_sink: MqttSink, lead: Event
) -> None:
    broker.reply = take_only("evt_0", "evt_1")
    outcomes = await short_timeout_sink.send_batch(series(lead, 4))
    assert told(outcomes) == [DELIVERED] * 2 + [LATE] * 2
    broker.reply = take
    assert told(await short_timeout_sink.send_batch(series(lead, 2))) == [DELIVERED] * 2
    assert broker.contacts == 2


async def test_events_that_wait_for_a_silent_broker_time_out_and_are_never_sent(
    broker: MqttDouble, short_timeout_sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=2)
    broker.reply = lambda _: None
    sends = [short_timeout_sink.send_batch(series(lead, 5)) for _ in range(2)]
    for outcomes in await asyncio.gather(*sends):
        assert {each[0] for each in told(outcomes)} == {Temporary}
    assert len(broker.published) == 2
    broker.reply = take
    assert told(await short_timeout_sink.send_batch(series(lead, 5))) == [DELIVERED] * 5
    assert (len(broker.published), broker.contacts) == (7, 2)


async def test_one_event_that_is_never_answered_does_not_end_what_goes_on_beside_it(
    broker: MqttDouble, short_timeout_sink: MqttSink, lead: Event
) -> None:
    broker.reply = take_only("evt_0", "evt_2")
    outcomes = await short_timeout_sink.send_batch(series(lead, 3))
    assert told(outcomes) == [DELIVERED, LATE, DELIVERED]
    broker.reply = take
    assert told(await short_timeout_sink.send_batch(series(lead, 3))) == [DELIVERED] * 3
    assert broker.contacts == 1
    broker.say(puback(broker.published[1].packet_id))
    await until(lambda: remembered(short_timeout_sink) == [], what="the answer that came late")


async def test_confirms_in_another_order_are_not_a_silence(
    broker: MqttDouble, short_timeout_sink: MqttSink, lead: Event
) -> None:
    broker.reply = lambda _: None
    sending = asyncio.create_task(short_timeout_sink.send_batch(series(lead, 3)))
    await until_published(broker, 3)
    for place in (2, 0):
        broker.say(puback(broker.published[place].packet_id))
    assert told(await sending) == [DELIVERED, LATE, DELIVERED]
    broker.reply = take
    await short_timeout_sink.send(lead)
    assert broker.contacts == 1


async def test_a_batch_without_room_that_is_given_up_ends_nothing_at_a_broker_that_answers(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=2)
    broker.reply = lambda _: None
    batches = [series(lead, 2), series(lead, 1), series(lead, 2)]
    first, second, without_room = [asyncio.create_task(sink.send_batch(each)) for each in batches]
    await until_published(broker, 2)
    broker.say(puback(broker.published[0].packet_id))
    await until_published(broker, 3)
    without_room.cancel()
    await asyncio.wait({without_room})
    for publish in broker.published[1:]:
        broker.say(puback(publish.packet_id))
    assert told(await first) == [DELIVERED] * 2
    assert told(await second) == [DELIVERED]
    assert (len(broker.published), broker.contacts) == (3, 1)


async def test_abandoned_messages_count_towards_the_concurrency(
    broker: MqttDouble, lead: Event
) -> None:
    sink = build(url=broker.url, topic="relay/fixed", concurrency=3, timeout="1s")
    broker.reply = take_only("evt_2")
    assert told(await sink.send_batch(series(lead, 3))) == [LATE, LATE, DELIVERED]
    sending = asyncio.create_task(sink.send_batch(series(lead, 3)))
    assert told(await sending) == [LATE] * 3
    assert (len(broker.published), broker.contacts) == (4, 1)
    await sink.close()


async def test_a_batch_that_is_cancelled_sends_nothing_more(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=2)
    broker.reply = lambda _: None
    sending = asyncio.create_task(sink.send_batch(series(lead, 6)))
    await until_published(broker, 2)
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()
    broker.reply = take
    await sink.send(replace(lead, id="evt_after"))
    assert published(broker) == ["evt_0", "evt_1", "evt_after"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (0x8B, [(Temporary, "the broker is shutting down")] * 3),
        (0x87, [DELIVERED] * 3),
        (0x95, [DELIVERED, TOO_LARGE, DELIVERED]),
        (0x99, [DELIVERED] * 3),
    ],
)
async def test_a_disconnect_concerns_unanswered_events_and_those_it_does_not_name_are_sent_again(
    broker: MqttDouble, sink: MqttSink, lead: Event, code: int, wanted: list[Any]
) -> None:
    broker.reply = take_only("evt_0")
    events = series(lead, 4)
    events[0] = replace(lead, id="evt_0", body=lead.body.ljust(9000))
    events[2] = replace(lead, id="evt_2", body=lead.body.ljust(5000))
    sending = asyncio.create_task(sink.send_batch(events))
    await until_published(broker, 4)
    broker.reply = take
    broker.say(disconnect(code))
    assert told(await sending) == [DELIVERED, *wanted]
    assert told(await sink.send_batch(events)) == [DELIVERED] * 4
    assert broker.contacts == 2


async def test_each_message_that_makes_the_broker_disconnect_is_found_and_no_other_fails(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    def reply(_: Publish) -> Any:
        is_bad = published(broker)[-1] in ("evt_1", "evt_3")
        return disconnect(0x87) if is_bad else take(broker.published[-1])

    broker.reply = reply
    outcomes = told(await sink.send_batch(series(lead, 5)))
    assert outcomes == [DELIVERED, FORBIDDEN, DELIVERED, FORBIDDEN, DELIVERED]


async def test_an_event_that_was_still_waiting_when_the_connection_ended_is_not_blamed(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=1)
    broker.reply = lambda _: disconnect(0x99)
    blamed = (Refused, "the broker rejects the payload format")
    assert told(await sink.send_batch(series(lead, 3))) == [blamed, LOST, LOST]
