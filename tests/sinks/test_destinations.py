"""Where messages go: no event chooses a name that its broker reserves, tried at the brokers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from relay import sinks
from relay.config import load
from relay.core import config_values
from relay.core.delivery import SinkResponse
from relay.core.errors import InvalidTemplate, Refused
from relay.core.event import LEAD_CAPTURED, Event
from tests.brokers.mosquitto import PASSWORD, Mosquitto
from tests.brokers.nats import NatsServer
from tests.config.test_sinks import HEAD, VALID
from tests.conftest import ManualClock
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.batch import DELIVERED, series, told, unfit
from tests.sinks.conformance import Harness
from tests.sinks.harnesses import marks
from tests.sinks.kafka.harness import KafkaHarness
from tests.sinks.mqtt import conftest as mqtt
from tests.sinks.mqtt.harness import MqttHarness
from tests.sinks.nats import conftest as nats
from tests.sinks.nats.conftest import make, server
from tests.sinks.nats.harness import NatsHarness
from tests.sinks.pubsub.harness import PubsubHarness
from tests.sinks.redis.harness import RedisHarness

__all__ = ["make", "server"]  # fixtures

KEYS = {
    "amqp": "routing_key",
    "kafka": "topic",
    "mqtt": "topic",
    "nats": "subject",
    "pubsub": "topic",
    "redis": "stream",
}

RESERVED: list[tuple[type[Harness], str, str, str]] = [
    (AmqpHarness, "{{ data.name }}", "amq.rabbitmq.reply-to.g1.x", "amq."),
    (AmqpHarness, "{{ data.name }}", "amq.gen-x", "amq."),
    (KafkaHarness, "{{ data.name }}", "__consumer_offsets", "__"),
    (KafkaHarness, "{{ data.name }}", "__transaction_state", "__"),
    (KafkaHarness, "_{{ data.name }}", "_consumer_offsets", "__"),
    (MqttHarness, "{{ data.name }}/x", "$SYS", "$SYS/"),
    (MqttHarness, "{{ data.name }}/x", "$share", "$share/"),
    (MqttHarness, "{{ data.name }}/x", "$queue", "$queue/"),
    (MqttHarness, "{{ data.name }}", "$aws", "$"),
    (NatsHarness, "{{ data.name }}", "$JS.API.STREAM.PURGE.OTHER", "$JS."),
    (NatsHarness, "{{ data.name }}", "$SYS.REQ.SERVER.PING", "$SYS."),
    (NatsHarness, "{{ data.name }}", "$KV.leads.x", "$KV."),
    (NatsHarness, "{{ data.name }}", "$O.files.M.x", "$O."),
    (NatsHarness, "{{ data.name }}.x", "$SRV", "$"),
    (NatsHarness, "{{ data.name }}", "_INBOX.abc.1", "_INBOX"),
    (NatsHarness, "{{ data.name }}", " INBOX.abc.1", "_INBOX"),
    (NatsHarness, "{{ data.name }}", "_R_.abc.1", "_R_"),
    (NatsHarness, "{{ data.name }}", "_GR_.abc.1", "_GR_"),
    (NatsHarness, "{% set n = data.name %}{{ n }}", "$JS.x", "$JS."),
    (PubsubHarness, "{{ data.name }}", "google-topic", "goog"),
]

IMPOSSIBLE: list[tuple[type[Harness], str, str]] = [
    (AmqpHarness, "", "is empty"),
    (KafkaHarness, ".", "does not fit: expected letters, digits, dots, _ and -, "),
    (KafkaHarness, "..", "does not fit: expected letters, digits, dots, _ and -, "),
    (KafkaHarness, "x" * 250, "is longer than 249 bytes"),
    (MqttHarness, "", "is empty"),
    (PubsubHarness, "x", "does not fit: expected the topic's name alone: "),
    (RedisHarness, "", "is empty"),
]


def named(lead: Event, name: str) -> Event:
    document = lead.document()
    document["data"]["name"] = name
    return replace(lead, body=json.dumps(document).encode())


async def sent(harness: Harness, template: str, event: Event) -> Any:
    """Send an event to where a template over it says; return what became of it."""
    kind = harness.sink_type
    changed: dict[str, object] = {KEYS[kind]: template, "events": [LEAD_CAPTURED]}
    if kind == "nats":
        changed["stream"] = None
    sink: Any = sinks.load(kind).build(harness.settings(**changed), ManualClock())
    try:
        (outcome,) = told(await sink.send_batch([event]))
    finally:
        await sink.close()
    return outcome


@pytest.mark.parametrize(
    ("kind", "template", "name", "prefix"),
    [pytest.param(*row, marks=marks(row[0])) for row in RESERVED],
    ids=str,
)
async def test_a_name_that_the_broker_reserves_is_refused_without_repeating_it(
    lead: Event, kind: type[Harness], template: str, name: str, prefix: str
) -> None:
    async with kind() as harness:
        error, reason = await sent(harness, template, named(lead, name))
    _, expected = unfit(KEYS[kind.sink_type], f"begins with {prefix}, which is reserved for ")
    assert error is Refused
    assert reason.startswith(expected)
    assert name not in reason.removeprefix(expected)


@pytest.mark.parametrize(
    ("kind", "name", "fault"),
    [pytest.param(*row, marks=marks(row[0])) for row in IMPOSSIBLE],
    ids=str,
)
async def test_a_name_that_the_broker_cannot_have_is_refused(
    lead: Event, kind: type[Harness], name: str, fault: str
) -> None:
    async with kind() as harness:
        error, reason = await sent(harness, "{{ data.name }}", named(lead, name))
    assert error is Refused
    assert reason.startswith(unfit(KEYS[kind.sink_type], fault)[1])


@pytest.mark.servers
async def test_an_mqtt_wildcard_from_a_branch_that_no_sample_takes_is_refused(lead: Event) -> None:
    template = "relay/{% if data.name == 'odd' %}#{% else %}x{% endif %}"
    async with MqttHarness() as harness:
        found = await sent(harness, template, named(lead, "odd"))
    expected = "does not fit: expected levels with / between, without + and #"
    assert found == unfit("topic", expected)


async def test_a_lead_cannot_empty_another_stream_of_nats(
    server: NatsServer, make: nats.Make, lead: Event
) -> None:
    async with server.jetstream() as js:
        await js.add_stream(name="OTHER", subjects=["other"])
        await js.publish("other", b"precious")
    sink = make(subject="{{ data.name }}", events=[LEAD_CAPTURED])
    events = series(named(lead, "$JS.API.STREAM.PURGE.OTHER"), 1)
    events += series(named(lead, "relay.x"), 1)
    hostile, good = await sink.send_batch(events)
    assert (type(hostile), type(good)) == (Refused, SinkResponse)
    async with server.jetstream() as js:
        assert (await js.stream_info("OTHER")).state.messages == 1


@pytest.mark.servers
async def test_a_lead_cannot_reach_a_queue_that_rabbitmq_has_named(lead: Event) -> None:
    async with AmqpHarness() as harness, harness.server.channel() as channel:
        queue = await channel.declare_queue("", exclusive=True)
        assert queue.name.startswith("amq.")
        error, _ = await sent(harness, "{{ data.name }}", named(lead, queue.name))
        assert error is Refused
        assert await queue.get(fail=False) is None


@pytest.mark.servers
async def test_with_an_amqp_exchange_of_its_own_a_routing_key_may_be_any(lead: Event) -> None:
    async with AmqpHarness() as harness:
        async with harness.server.channel() as channel:
            queue = await channel.get_queue(harness.queue, ensure=False)
            await queue.bind("amq.fanout")
        config_values: Any = harness.settings(exchange="amq.fanout", routing_key="{{ source }}")
        sink: Any = sinks.load("amqp").build(config_values, ManualClock())
        events = [replace(lead, source=source) for source in ("amq.gen-x", "")]
        assert told(await sink.send_batch(events)) == [DELIVERED] * 2
        await sink.close()


async def test_a_bucket_of_nats_that_the_operator_wrote_out_is_filled(
    server: NatsServer, make: nats.Make, lead: Event
) -> None:
    async with server.jetstream() as js:
        bucket = await js.create_key_value(bucket="leads")
        sink = make(subject="$KV.leads.{{ data.name }}", events=[LEAD_CAPTURED])
        await sink.send(named(lead, "ada"))
        assert (await bucket.get("ada")).value == named(lead, "ada").body


@pytest.mark.servers
async def test_a_topic_of_mqtt_under_a_dollar_that_the_operator_wrote_out_is_used(
    tmp_path: Path, lead: Event
) -> None:
    server = Mosquitto(tmp_path)
    server.configure(topics="$aws/#")
    server.start()
    login = {"url": server.url, "username": "relay", "password": PASSWORD}
    sink = mqtt.build(**login, topic="$aws/rules/leads/{{ event }}", unheard="accept")
    assert told(await sink.send_batch([lead])) == [DELIVERED]
    await sink.close()
    server.stop()


@pytest.mark.parametrize(
    ("kind", "value", "prefix"),
    [
        ("amqp", "amq.gen-x", "amq."),
        ("amqp", "amq.{{ event }}", "amq."),
        ("kafka", "__consumer_offsets", "__"),
        ("kafka", "__{{ event }}", "__"),
        ("mqtt", "$SYS/{{ event }}", "$SYS/"),
        ("mqtt", "$share/group/x", "$share/"),
        ("mqtt", "$queue/x", "$queue/"),
        ("mqtt", "${{ event }}/x", "$"),
        ("nats", "$JS.API.{{ event }}", "$JS."),
        ("nats", "$SYS.x", "$SYS."),
        ("nats", "$KV", "$"),
        ("nats", "$KV.{{ event }}", "$KV."),
        ("nats", "${{ event }}.x", "$"),
        ("nats", "_INBOX.{{ event }}", "_INBOX"),
        ("pubsub", "google", "goog"),
    ],
)
def test_a_reserved_name_is_a_fault_of_the_config(kind: str, value: str, prefix: str) -> None:
    with pytest.raises(ValueError, match=f"^{KEYS[kind]}: ") as caught:
        built(kind, value)
    assert f"begins with {prefix}, which is reserved for " in str(caught.value)


def test_an_exchange_to_which_only_the_broker_writes_is_a_fault_of_the_config() -> None:
    with pytest.raises(ValueError, match=r"^exchange: begins with amq\.rabbitmq\., to which only"):
        built("amqp", "x", exchange="amq.rabbitmq.trace")


def built(kind: str, value: str, **changed: object) -> Any:
    keys = {name: json.loads(text) for name, text in VALID[kind].items() if text.startswith('"')}
    table = {"name": "a", "type": kind, **keys, "exchange": "", **changed, KEYS[kind]: value}
    known = {key: each for key, each in table.items() if key != "exchange" or kind == "amqp"}
    module = sinks.load(kind)
    return module.build(
        msgspec.convert(known, module.Settings, dec_hook=config_values.decode), ManualClock()
    )


def test_a_message_that_would_be_refused_is_marked_where_it_is_rendered(lead: Event) -> None:
    sink = built("nats", "{{ data.name }}", events=[LEAD_CAPTURED])
    with pytest.raises(InvalidTemplate, match=r"begins with \$JS\., which is reserved"):
        sink.render(named(lead, "$JS.API.INFO"))


def test_every_type_whose_template_chooses_where_events_go_names_it() -> None:
    found = {kind: sinks.load(kind).Settings.destination for kind in sinks.names()}
    assert {kind: key for kind, key in found.items() if key is not None} == KEYS


def warnings(folder: Path, kind: str, keys: Mapping[str, str]) -> list[str]:
    file = folder / "config.toml"
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    events = f'events = ["{LEAD_CAPTURED}"]'
    file.write_text(f'{HEAD}[[sink]]\nname = "a"\ntype = "{kind}"\n{events}\n{lines}')
    return [str(warning) for warning in load(file, {}).warnings]


@pytest.mark.parametrize("kind", KEYS)
def test_a_template_that_begins_with_what_outsiders_fill_in_is_warned_of(
    tmp_path: Path, kind: str
) -> None:
    key = KEYS[kind]
    assert warnings(tmp_path, kind, VALID[kind] | {key: '"x{{ data.name }}"'}) == []
    (warning,) = warnings(
        tmp_path, kind, VALID[kind] | {key: "\"{{ data.company | default('xyz') }}\""}
    )
    assert warning == (
        f"sink[0] (a).{key}: begins with a value of `data`, so anyone who fills in a form chooses "
        "where the event goes: put fixed text first"
    )
