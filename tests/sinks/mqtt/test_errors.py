"""The `mqtt` sink and what a broker can say to it, told by a double: each of it is one error."""

import asyncio

import pytest
from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.mqtt.errors import MEANINGS
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mqtt_double import MqttDouble, take
from tests.brokers.mqtt_packets import connack, disconnect, puback
from tests.sinks.conformance import error_of
from tests.sinks.conftest import Closing
from tests.sinks.mqtt.conftest import build
from tests.stub_server import until

PINGREQ = b"\xc0\x00"

Said = tuple[int, type[SinkError], str]

REFUSALS: list[Said] = [
    (0x80, Temporary, "the broker failed with reason code 0x80"),
    (0x83, Temporary, "the broker failed with reason code 0x83"),
    (0x87, Misconfigured, "the user may not publish to this topic"),
    (0x90, Misconfigured, "the broker does not accept this topic"),
    (0x91, Temporary, "the broker failed with reason code 0x91"),
    (0x95, Refused, "larger than the broker takes"),
    (0x97, Temporary, "a quota of the broker is used up"),
    (0x99, Refused, "the broker rejects the payload format"),
]
"""MQTT 5.0, section 3.4.2.1, and 0x95, which mosquitto sends."""

REJECTIONS: list[Said] = [
    (0x84, Misconfigured, "the broker does not speak MQTT 5"),
    (0x85, Misconfigured, "the broker does not accept this client_id"),
    (0x86, Misconfigured, "wrong username or password"),
    (0x87, Misconfigured, "wrong username or password, or no right to connect"),
    (0x88, Temporary, "the broker is not available"),
    (0x89, Temporary, "the broker is busy"),
    (0x8A, Misconfigured, "the broker has banned this client"),
    (0x95, Misconfigured, "larger than the broker takes"),
    (0x97, Temporary, "a quota of the broker is used up"),
    (0x9C, Temporary, "the broker sends clients to another server for now"),
    (0x9D, Misconfigured, "the broker has moved"),
    (0x9F, Temporary, "connection rate exceeded"),
]
"""Section 3.2.2.2."""

FAREWELLS: list[Said] = [
    (0x87, Misconfigured, "the user may not publish to this topic"),
    (0x89, Temporary, "the broker is busy"),
    (0x8B, Temporary, "the broker is shutting down"),
    (0x8E, Misconfigured, "another client with this client_id took the connection over"),
    (0x93, Temporary, "too many unconfirmed messages (receive maximum exceeded)"),
    (0x95, Refused, "larger than the broker takes"),
    (0x96, Temporary, "message rate too high"),
    (0x97, Temporary, "a quota of the broker is used up"),
    (0x98, Temporary, "an administrator ended the connection"),
    (0x9C, Temporary, "the broker sends clients to another server for now"),
    (0x9D, Temporary, "the broker has moved"),
]
"""Section 3.14.2.1."""


@pytest.fixture
def sink(broker: MqttDouble, closing: Closing) -> MqttSink:
    """Return one whose topic needs no document: bodies are of any size here."""
    return closing(build(url=broker.url, topic="relay/fixed"))


def of_all(event: Event, sink: MqttSink, *sizes: int) -> list[asyncio.Task[object]]:
    """Send one event of each size at once."""
    events = [replace(event, id=f"evt_{size}", body=b"x" * size) for size in sizes]
    return [asyncio.create_task(sink.send(each)) for each in events]


@pytest.mark.parametrize("said", REFUSALS)
async def test_a_refusal_is_read(
    broker: MqttDouble,
    sink: MqttSink,
    lead: Event,
    said: Said,
) -> None:
    code, kind, reason = said
    broker.reply = lambda publish: puback(publish.packet_id, code)
    error = await error_of(sink, lead)
    assert (type(error), error.reason, error.status) == (kind, reason, code)
    broker.reply = take
    await sink.send(lead)
    assert broker.contacts == 1


@pytest.mark.parametrize("said", REJECTIONS)
async def test_a_login_that_is_turned_away_is_never_an_events_fault(
    broker: MqttDouble,
    sink: MqttSink,
    lead: Event,
    said: Said,
) -> None:
    code, kind, reason = said
    before = broker.connack
    broker.connack = connack(code)
    error = await error_of(sink, lead)
    assert (type(error), error.reason, error.status) == (kind, reason, code)
    with pytest.raises(kind, match=reason):
        await sink.check()
    broker.connack = before
    await sink.send(lead)


async def test_a_broker_of_mqtt_3_is_named(broker: MqttDouble, sink: MqttSink, lead: Event) -> None:
    broker.connack = b"\x20\x02\x00\x01"
    error = await error_of(sink, lead)
    assert (type(error), error.reason) == (Misconfigured, "the broker does not speak MQTT 5")


@pytest.mark.parametrize("said", FAREWELLS)
async def test_a_farewell_is_read(
    broker: MqttDouble,
    sink: MqttSink,
    lead: Event,
    said: Said,
) -> None:
    code, kind, reason = said
    broker.reply = lambda _: disconnect(code)
    error = await error_of(sink, lead)
    assert (type(error), error.reason, error.status) == (kind, reason, code)
    broker.reply = take
    await sink.send(lead)
    assert broker.contacts == 2


def test_every_meaning_is_tried() -> None:
    tried = {code for code, _, _ in (*REFUSALS, *REJECTIONS, *FAREWELLS)}
    assert set(MEANINGS) - tried == {0x8C, 0x9B}


async def test_the_largest_of_several_is_refused_as_too_large_and_the_others_are_sent_again(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.reply = lambda _: None
    sending = of_all(lead, sink, 10, 5000, 20)
    await until(lambda: len(broker.published) == 3, what="all three")
    broker.reply = take
    broker.say(disconnect(0x95))
    small, large, other = await asyncio.gather(*sending, return_exceptions=True)
    assert repr(large) == repr(Refused("larger than the broker takes"))
    assert all(isinstance(innocent, SinkResponse) for innocent in (small, other))


async def test_no_event_is_blamed_for_the_fault_of_another(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.reply = lambda _: None
    sending = of_all(lead, sink, 10, 20)
    await until(lambda: len(broker.published) == 2, what="both")
    broker.say(disconnect(0x99))
    errors = await asyncio.gather(*sending, return_exceptions=True)
    assert {type(error) for error in errors} == {Temporary}


async def test_an_event_that_was_not_sent_for_lack_of_room_is_not_blamed(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=1)
    broker.reply = lambda _: None
    sent, waiting = of_all(lead, sink, 10, 20)
    await until(lambda: len(broker.published) == 1, what="the first")
    broker.say(disconnect(0x99))
    errors = await asyncio.gather(sent, waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [Refused, Temporary]


async def test_an_abandoned_message_counts_towards_the_receive_maximum_until_it_is_answered(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=2)
    broker.reply = lambda _: None
    sending = of_all(lead, sink, 1, 2, 3, 4)
    await until(lambda: len(broker.published) == 2, what="as many as are allowed")
    broker.say(take(broker.published[0]))
    await sending[0]
    await until(lambda: len(broker.published) == 3, what="the next")
    # The third's answer comes while the second waits, so that the broker is known to live.
    broker.say(take(broker.published[2]))
    await sending[2]
    await until(lambda: len(broker.published) == 4, what="the last")
    sending[1].cancel()
    await asyncio.wait({sending[1]})
    late = asyncio.create_task(sink.send(lead))
    await asyncio.sleep(0.05)
    assert (len(broker.published), broker.contacts) == (4, 1)
    broker.say(take(broker.published[1]))
    await until(lambda: len(broker.published) == 5, what="one in its place")
    broker.say(take(broker.published[3]))
    broker.say(take(broker.published[4]))
    await asyncio.gather(sending[3], late)
    assert broker.contacts == 1


async def test_a_broker_with_a_missing_answer_is_disconnected_once_nothing_else_moves(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ReceiveMaximum=2)
    broker.reply = lambda publish: None if publish.payload == b"x" else take(publish)
    (first,) = of_all(lead, sink, 1)
    await until(lambda: len(broker.published) == 1, what="the first that is forgotten")
    await sink.send(lead)
    first.cancel()
    await asyncio.wait({first})
    (second,) = of_all(lead, sink, 1)
    await until(lambda: len(broker.published) == 3, what="the second")
    assert broker.contacts == 1
    without_room = asyncio.create_task(sink.send(lead))
    await asyncio.sleep(0.02)
    without_room.cancel()
    (error,) = await asyncio.gather(second, return_exceptions=True)
    assert repr(error) == repr(Temporary("the connection was lost"))
    await sink.send(lead)
    assert (len(broker.published), broker.contacts) == (4, 2)


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 100, b"\x15\x03\x01\x00\x02\x02\x16", b"\xff" * 9],
)
async def test_a_server_that_does_not_speak_mqtt_is_recognised(
    broker: MqttDouble, sink: MqttSink, lead: Event, greeting: bytes
) -> None:
    broker.connack = greeting
    error = await error_of(sink, lead)
    assert (type(error), error.reason) == (Temporary, "what answers there is not MQTT 5")


async def test_garbage_ends_all_waiting_requests(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.reply = lambda _: b"\x00\x00"
    error = await error_of(sink, lead)
    assert (type(error), error.reason) == (Temporary, "the connection was lost")
    broker.reply = take
    await sink.send(lead)


async def test_an_acknowledgement_of_another_packet_confirms_nothing(
    broker: MqttDouble, lead: Event
) -> None:
    sink = build(url=broker.url, timeout="300ms")
    broker.reply = lambda publish: puback(publish.packet_id + 1)
    error = await error_of(sink, lead)
    assert (type(error), error.reason) == (Temporary, "no answer within 0.3 s")
    broker.reply = take
    await sink.send(lead)
    await sink.close()


async def test_a_password_without_a_username_is_sent(broker: MqttDouble, lead: Event) -> None:
    sink = build(url=broker.url, password="marked")
    await sink.send(lead)
    assert broker.received[0].endswith(b"\x00\x06marked")
    await sink.close()


async def test_a_broker_that_answers_no_ping_is_disconnected(
    broker: MqttDouble, sink: MqttSink, lead: Event
) -> None:
    broker.connack = connack(ServerKeepAlive=1)
    await sink.send(lead)
    assert sink._publisher is not None
    connection = sink._publisher.connection
    await until(lambda: not connection.usable, what="the end of the connection")
    assert broker.received[-1] == PINGREQ
    await sink.send(lead)
    assert broker.contacts == 2


async def test_a_handshake_without_an_answer_ends_in_time_and_leaves_nothing_open(
    lead: Event,
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(5):
        port = server.sockets[0].getsockname()[1]
        error = await error_of(build(url=f"mqtts://127.0.0.1:{port}", timeout="300ms"), lead)
        assert type(error) is Temporary
        assert error.reason in {"no answer within 0.3 s", "could not connect in time"}
        await ended.wait()
