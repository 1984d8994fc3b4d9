"""The `mqtt` sink beyond what every sink does: its message, its limits, TLS, its settings."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from relay.core import config_values, sample_events
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.mqtt import sink as mqtt
from relay.sinks.mqtt.sink import MqttSink
from tests.brokers.authority import Authority
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.brokers.mqtt_double import MqttDouble
from tests.brokers.mqtt_link import Link
from tests.brokers.mqtt_packets import connack
from tests.conftest import ManualClock
from tests.ports import free_port
from tests.sinks.batch import DELIVERED, series, told

Make = Callable[..., MqttSink]


def build(**table: Any) -> MqttSink:
    full = {"name": "bus", "type": "mqtt", **table}
    decoded = msgspec.convert(full, mqtt.Settings, dec_hook=config_values.decode)
    return mqtt.build(decoded, ManualClock())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: Mosquitto) -> AsyncIterator[Make]:
    made: list[MqttSink] = []

    def make(**table: Any) -> MqttSink:
        login = {"username": "relay", "password": PASSWORD, "client_id": "relay"}
        made.append(build(**{"url": server.url, **login, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def error_of(sink: MqttSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value


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


def ids(server: Mosquitto) -> list[str]:
    return [user_properties(message)["relay-id"] for message in server.read()]


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


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("x" * 65_536, "is longer than 65535 bytes"),
        ("", "is empty"),
    ],
)
async def test_an_invalid_topic_name_is_refused(
    make: Make, lead: Event, kind: str, reason: str
) -> None:
    document = lead.document() | {"event": kind}
    sink = make(topic="{{ event }}")
    error = await error_of(sink, replace(lead, body=json.dumps(document).encode()))
    assert type(error) is Refused
    assert error.reason == f"the template of `topic` fails on this event: the result {reason}"


async def test_a_topic_that_needs_what_is_missing_is_refused(make: Make, lead: Event) -> None:
    sink = make(topic="relay/{{ data.email }}", events=["lead.captured"])
    error = await error_of(sink, replace(lead, body=b'{"id":"evt_1"}'))
    assert type(error) is Refused
    assert error.reason.startswith("the template of `topic` fails on this event: ")


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


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"password": "another"}, "wrong username or password, or no right to connect"),
        ({"topics": "elsewhere"}, "the user may not publish to this topic"),
        ({"more": "max_qos 0"}, "the broker does not support QoS 1, so it would never confirm"),
    ],
)
async def test_a_misconfiguration_is_named_until_it_is_fixed(
    server: Mosquitto, make: Make, lead: Event, config: dict[str, str], reason: str
) -> None:
    await asyncio.to_thread(server.start_with, **config)
    sink = make()
    for _ in range(2):
        error = await error_of(sink, lead)
        assert (type(error), error.reason) == (Misconfigured, reason)
        await asyncio.sleep(0.05)  # mosquitto ends a connection on which it refused something
    await asyncio.to_thread(server.start_with)
    await sink.send(lead)
    assert len(server.read()) == 1


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


async def test_the_brokers_receive_maximum_is_kept(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    server.start_with(more="max_inflight_messages 2")
    sink = make()
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(sink.send(replace(lead, id=f"evt_{number}")))
    assert len(server.read()) == 300
    assert server.contacts() == 1


async def test_a_batch_to_a_frozen_broker_ends_in_time_and_the_next_one_is_sent(
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


async def test_a_frozen_broker_gets_nothing_later_that_was_given_up(
    server: Mosquitto, make: Make, lead: Event
) -> None:
    sink = make(topic="relay/fixed")
    await sink.send(lead)
    server.freeze()
    # More than the sockets' buffers hold, so that some of it is still here.
    events = [replace(lead, id=f"evt_{n}", body=b"x" * 900_000) for n in range(12)]
    sending = [asyncio.create_task(sink.send(event)) for event in events]
    await asyncio.wait(sending, timeout=0.2)
    for task in sending:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(sending)
    server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert len(server.read()) < len(events)


async def test_a_loss_ends_what_waits_at_once(server: Mosquitto, make: Make, lead: Event) -> None:
    sink = make()
    await sink.send(lead)
    server.freeze()
    sending = [asyncio.create_task(sink.send(replace(lead, id=f"e{n}"))) for n in range(20)]
    await asyncio.sleep(0.05)
    server.kill()
    async with asyncio.timeout(5):
        errors = await asyncio.gather(*sending, return_exceptions=True)
    assert {(type(error), str(error)) for error in errors} == {
        (Temporary, "the connection was lost")
    }


async def test_an_unreachable_server_is_reported(lead: Event) -> None:
    error = await error_of(build(url=f"mqtt://127.0.0.1:{free_port()}"), lead)
    assert (type(error), error.reason) == (Temporary, "connection refused")
    error = await error_of(build(url="mqtt://relay.invalid"), lead)
    assert (type(error), error.reason) == (Temporary, "name not found")


async def test_tls_is_spoken_and_verified_both_ways(
    server: Mosquitto, make: Make, lead: Event, tmp_path: Path
) -> None:
    authority, port = Authority(tmp_path / "authority"), free_port()
    ours, theirs, ca = authority.issue("relay"), authority.issue("broker"), str(authority.file)
    files = f"cafile {ca}\ncertfile {theirs}\nkeyfile {theirs}\nrequire_certificate true"
    server.start_with(more=f"listener {port} 127.0.0.1\n{files}")
    url = f"mqtts://127.0.0.1:{port}"
    sink = make(url=url, ca_file=ca, client_cert_file=str(ours))
    await sink.send(lead)
    assert ids(server) == ["evt_lead"]
    assert told(await sink.send_batch(series(lead, 40))) == [DELIVERED] * 40
    await sink.check()
    unknown = await error_of(make(url=url), lead)
    assert type(unknown) is Misconfigured
    assert unknown.reason.startswith("the broker's TLS certificate does not verify: self-signed")
    unproved = await error_of(make(url=url, ca_file=ca), lead)
    assert (type(unproved), unproved.reason) == (
        Misconfigured,
        "the broker does not accept our TLS certificate",
    )


async def test_tls_is_required(server: Mosquitto, make: Make, lead: Event) -> None:
    error = await error_of(make(url=server.url.replace("mqtt:", "mqtts:")), lead)
    assert type(error) is Temporary
    assert server.contacts() == 0


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"url": "http://marked.example"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://marked:70000"}, "url: expected mqtt:// or mqtts:// and a host"),
        ({"url": "mqtt://a:marked@b"}, "url: username and password have keys of their own"),
        ({"url": "mqtt://b/marked"}, "url: nothing may follow the port"),
        ({"url": "mqtt://b", "ca_file": "/x"}, "url: expected mqtts://, because TLS files"),
        (
            {"topic": "relay/#"},
            r"topic: does not fit: expected levels with / between, without \+ and #",
        ),
        ({"topic": "relay/+/x"}, "topic: does not fit: expected levels"),
        ({"topic": "a\nb"}, "topic: does not fit: expected levels"),
        ({"topic": ""}, "topic: is empty"),
        ({"topic": "x" * 65_536}, "topic: is longer than 65535 bytes"),
        ({"topic": "{{ nothing }}"}, "topic: line 1: no such name: nothing"),
        ({"topic": "{{ data.nix }}"}, "topic: line 1: nix is missing in this event"),
        ({"client_id": "a\nb"}, "client_id: expected printable characters"),
        ({"client_id": "x" * 65_536}, "client_id: is longer than 65535 bytes"),
        ({"password": "x" * 65_536}, "password: is longer than 65535 bytes"),
        ({"url": "mqtts://b", "ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"url": "mqtts://b", "client_key_file": "/x"}, "client_key_file: needs client_cert_file"),
    ],
)
def test_a_wrong_value_is_named_and_not_repeated(table: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}") as caught:
        build(**{"url": "mqtt://127.0.0.1", **table})
    assert "marked" not in str(caught.value)


def test_the_message_can_be_shown_without_sending_it() -> None:
    shown = build(url="mqtt://127.0.0.1").render(sample_events.event("video.ready"))
    assert shown["topic"] == "relay/video.ready"
    assert shown["user_properties"]["relay-id"] == "evt_sample"
