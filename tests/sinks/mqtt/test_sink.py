"""The `mqtt` sink beyond what every sink does: its message, its limits, TLS, its settings."""

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.mosquitto import Mosquitto, user_properties
from tests.brokers.mqtt_double import MqttDouble
from tests.brokers.mqtt_link import Link
from tests.brokers.mqtt_packets import connack
from tests.sinks.conformance import error_of
from tests.sinks.mqtt.conftest import Make, build, ids


def properties(server: Mosquitto) -> dict[str, str]:
    """Of the only message, by name."""
    (message,) = server.read()
    return user_properties(message)


async def outcomes_of(sink: MqttSink, events: Iterable[Event]) -> dict[str, object]:
    """Send all at once; return the outcome of each, by event id."""
    sent = {event.id: sink.send(event) for event in events}
    return dict(
        zip(sent, await asyncio.gather(*sent.values(), return_exceptions=True), strict=True)
    )


async def test_the_message_carries_the_event(server: Mosquitto, make: Make, lead: Event) -> None:
    await make().send(lead)
    (message,) = server.read()
    assert (message.topic, message.payload) == ("relay/lead.captured", lead.body)
    assert (message.qos, message.retain) == (1, False)
    assert message.properties is not None
    assert message.properties.json()["ContentType"] == "application/json"
    assert properties(server) == {
        "relay-id": "evt_lead",
        "relay-event": "lead.captured",
        "relay-source": "main",
        "relay-received-at": "2026-03-02T09:30:00.000Z",
    }


async def test_cloudevents_come_as_the_binding_names_them(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    await make(format="cloudevents").send(replace(lead, id="evt 1%\N{SNOWMAN}"))
    found = properties(server)
    assert found["id"] == found["relay-id"] == "evt 1%\N{SNOWMAN}"
    assert (found["type"], found["source"], found["specversion"]) == (
        "lead.captured",
        "main",
        "1.0",
    )
    assert {"time", "subject"} <= set(found)


async def test_text_that_would_make_a_broker_cut_the_connection_is_encoded(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    document = lead.document()
    document["data"]["video"]["id"] = "v\n1\x00\ufffe%"
    sink = make(format="cloudevents", topic="relay/{{ data.video.id }}", events=["lead.captured"])
    await sink.send(replace(lead, body=json.dumps(document).encode()))
    assert properties(server)["subject"] == "v%0A1%00%EF%BF%BE%"
    assert server.read()[0].topic == "relay/v_1__%"
    assert server.contacts() == 1


@pytest.mark.parametrize(
    ("kind", "topic"),
    [("a/b+c#d", "relay/a_b_c_d"), ("$x y", "relay/$x y"), ("\N{SNOWMAN}", "relay/\N{SNOWMAN}")],
)
async def test_a_value_is_one_level_of_the_topic(
    server: Mosquitto, make: Make, lead: Event, kind: str, topic: str
) -> None:
    document = lead.document() | {"event": kind}
    await make().send(replace(lead, kind=kind, body=json.dumps(document).encode()))
    assert [message.topic for message in server.read()] == [topic]


async def refused_size(sink: MqttSink, event: Event) -> int:
    """The packet's size in bytes, as the sink's error says it."""
    error = await error_of(sink, event)
    assert type(error) is Refused
    size, _, rest = error.reason.partition(" ")
    assert rest == "bytes are more than the broker's maximum packet size"
    return int(size)


@pytest.mark.parametrize("limit", [700, 20_000, 2_200_000])
async def test_the_largest_packet_is_taken_and_a_larger_one_refused(
    server: Mosquitto, make: Make, lead: Event, limit: int
) -> None:
    server.start_with(more=f"max_packet_size {limit}")
    sink = make(topic="relay/fixed")
    room = 2 * limit - await refused_size(sink, replace(lead, body=b"x" * limit))
    assert await refused_size(sink, replace(lead, body=b"x" * (room + 1))) == limit + 1
    await sink.send(replace(lead, body=b"x" * room))
    assert (len(server.read()[0].payload), server.contacts()) == (room, 1)


@pytest.mark.parametrize("size", [0, 100, 20_000, 2_200_000])
async def test_a_packet_has_the_size_that_the_sink_counts(lead: Event, size: int) -> None:
    event = replace(lead, body=b"x" * size)
    async with MqttDouble().listen() as broker:
        limited, unlimited = (build(url=broker.url, topic="relay/fixed") for _ in range(2))
        await unlimited.send(event)
        broker.connack = connack(MaximumPacketSize=1)
        assert await refused_size(limited, event) == broker.published[0].size
        await unlimited.close()
        await limited.close()


async def test_a_message_over_the_brokers_limit_is_refused_and_others_arrive(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    await asyncio.to_thread(server.start_with, more="message_size_limit 1000")
    sink = make(topic="relay/fixed")
    waiting = {f"evt_{number}": replace(lead, id=f"evt_{number}") for number in range(20)}
    waiting["evt_10"] = replace(waiting["evt_10"], body=b"x" * 1001)
    refused: list[str] = []
    # mosquitto ends a connection on which it refused something, whatever else is on its way there.
    async with asyncio.timeout(5):
        while waiting:
            outcomes = await outcomes_of(sink, waiting.values())
            refused += [str(each) for each in outcomes.values() if isinstance(each, Refused)]
            again = {id_ for id_, each in outcomes.items() if isinstance(each, Temporary)}
            waiting = {id_: waiting[id_] for id_ in again}
    assert refused == ["larger than the broker takes"]
    assert set(ids(server)) == {f"evt_{number}" for number in range(20)} - {"evt_10"}


async def test_sends_and_checks_at_a_frozen_broker_end_in_time_and_the_next_event_is_sent(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await sink.send(lead)
    server.freeze()
    for _ in range(2):  # on the connection that was there, and while it makes another
        async with asyncio.timeout(5):
            error = await error_of(sink, lead)
        assert (type(error), error.reason) == (Temporary, "no answer within 1 s")
    with pytest.raises(Temporary, match="no answer within 1 s"):
        await sink.check()
    server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert ids(server)[-1] == "evt_after"


async def test_a_subject_without_a_subscriber_parks_until_there_is_one(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    sink = make()
    server.forget_subscriber()
    error = await error_of(sink, lead)
    assert (type(error), error.reason, error.status) == (
        Misconfigured,
        "nobody subscribes to the topic of lead.captured",
        0x10,
    )
    server.subscribe()
    await sink.send(lead)
    assert len(server.read()) == 1


async def test_a_subscriber_that_is_away_for_a_while_counts(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    server.silence()
    await make().send(lead)
    server.subscribe()
    assert len(server.read()) == 1


async def test_a_missing_subscriber_is_accepted_where_the_config_says_so(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    server.forget_subscriber()
    answer = await make(unheard="accept").send(lead)
    assert answer.status == 0x10


async def test_a_check_finds_a_wrong_login(server: Mosquitto, make: Make) -> None:
    await make().check()
    with pytest.raises(Misconfigured, match="wrong username or password"):
        await make(password="another").check()
    with pytest.raises(Misconfigured, match="wrong username or password"):
        await build(url=server.url).check()


async def test_a_check_finds_that_a_connection_is_dead(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await sink.send(lead)
    server.freeze()
    with pytest.raises(Temporary, match="no answer within 1 s"):
        await sink.check()
    server.thaw()
    await sink.check()
    await sink.check()
    assert server.contacts() == 2


async def test_a_check_finds_a_broker_that_confirms_nothing(server: Mosquitto, make: Make) -> None:
    server.start_with(more="max_qos 0")
    with pytest.raises(Misconfigured, match="the broker does not support QoS 1"):
        await make().check()


async def test_a_close_is_not_a_lost_connection_for_the_broker(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    sink = make()
    await sink.send(lead)
    await sink.close()
    log = server.folder / "server.log"
    closed = re.compile(r"Client relay (\[\S+\] )?disconnected\.")
    async with asyncio.timeout(5):
        while server.connections() or not closed.search(log.read_text()):
            await asyncio.sleep(0.02)


async def test_a_broker_that_has_no_room_for_clients_is_waited_for(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    server.start_with(more="max_connections 3")
    sink = make()
    with ExitStack() as guests:
        with pytest.raises(ConnectionError):
            fill(server, guests)
        error = await error_of(sink, lead)
        assert (type(error), error.reason) == (
            Temporary,
            "the broker ended the connection before it let us in",
        )
    async with asyncio.timeout(5):
        while not await has_gone(sink, lead):
            await asyncio.sleep(0.02)
    assert ids(server) == ["evt_lead"]


def fill(server: Mosquitto, guests: ExitStack) -> None:
    for number in range(9):
        guests.enter_context(Link(server.port, f"guest-{number}"))


async def has_gone(sink: MqttSink, event: Event) -> bool:
    try:
        await sink.send(event)
    except Temporary:
        return False
    return True
