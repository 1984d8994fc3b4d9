"""The `amqp` sink against a real RabbitMQ, beyond what every sink does."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sink import Sink
from relay.sinks.amqp import sink as amqp
from tests.brokers.rabbitmq import PASSWORD
from tests.conftest import ManualClock
from tests.sinks.amqp.harness import AmqpHarness
from tests.stub_server import DEADLINE_S


@pytest.fixture
async def destination() -> AsyncIterator[AmqpHarness]:
    async with AmqpHarness() as harness:
        yield harness


@pytest.fixture
async def sink(destination: AmqpHarness, clock: ManualClock) -> AsyncIterator[Sink]:
    sink = destination.build(clock)
    yield sink
    await sink.close()


def built(destination: AmqpHarness, **changed: object) -> amqp.AmqpSink:
    settings: Any = destination.settings(**changed)
    return amqp.build(settings, ManualClock())


async def outcome(sink: Sink, event: Event) -> str:
    try:
        await sink.send(event)
    except SinkError as error:
        return f"{type(error).__name__}: {error.reason}"
    return "delivered"


async def test_the_properties_say_what_the_event_is(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    await sink.send(lead)
    message = destination.server.read(destination.queue)[0]
    assert message.message_id == lead.id
    assert message.type == LEAD_CAPTURED
    assert message.app_id == "relay"
    assert message.content_type == "application/json"
    assert message.delivery_mode == 2
    assert message.timestamp is not None
    assert int(message.timestamp.timestamp()) == lead.received_ms // 1000
    assert message.headers["relay-source"] == "main"
    assert message.headers["relay-id"] == lead.id


async def test_cloudevents_are_headers_as_the_binding_names_them(
    destination: AmqpHarness, lead: Event
) -> None:
    sink = built(destination, format="cloudevents")
    await sink.send(lead)
    await sink.close()
    headers = destination.server.read(destination.queue)[0].headers
    assert headers["cloudEvents_id"] == lead.id
    assert headers["cloudEvents_type"] == LEAD_CAPTURED


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("the queue is full", "Temporary: the queue rejects what is new"),
        ("larger than the broker takes", "Refused: larger than the broker's max_message_size"),
        ("no queue takes the routing key", "Misconfigured: no queue takes the routing key"),
        ("the password is wrong", "Misconfigured: wrong user or password"),
        ("the user may not write", "Misconfigured: the user may not write to the exchange"),
        ("nobody listens", "Temporary: connection refused"),
    ],
)
async def test_the_reason_is_in_the_operators_words(
    destination: AmqpHarness, sink: Sink, lead: Event, how: str, reason: str
) -> None:
    await destination.fail(how)
    assert (await outcome(sink, lead)).startswith(reason)


async def test_a_full_quorum_queue_takes_it_when_there_is_room(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    limits = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}
    await destination.server.put_queue(destination.queue, **limits)
    events = [replace(lead, id=f"evt_{number}") for number in range(100)]
    outcomes = [await outcome(sink, event) for event in events]
    full = "Temporary: the queue rejects what is new: it is full, or its leader is away"
    assert set(outcomes) == {"delivered", full}
    held = [str(message.message_id) for message in destination.server.read(destination.queue)]
    assert held == [e.id for e, found in zip(events, outcomes, strict=True) if found == "delivered"]
    await sink.send(lead)


async def test_a_missing_exchange_is_named(destination: AmqpHarness, lead: Event) -> None:
    sink = built(destination, exchange="nowhere")
    assert await outcome(sink, lead) == "Misconfigured: there is no exchange nowhere"
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()
    await sink.close()


async def test_a_check_misses_the_queue(destination: AmqpHarness, sink: Sink) -> None:
    await destination.fail("no queue takes the routing key")
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()


async def test_a_check_does_not_take_a_brace_for_a_template(destination: AmqpHarness) -> None:
    sink = built(destination, routing_key="{nowhere}")
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()
    queue = f"queues/%2F/{quote('{nowhere}')}"
    await asyncio.to_thread(destination.server.manage, "PUT", queue, {})
    await sink.check()
    await sink.close()
    await asyncio.to_thread(destination.server.manage, "DELETE", queue, {})


async def test_a_check_does_not_guess_what_a_template_will_name(destination: AmqpHarness) -> None:
    sink = built(destination, routing_key="{{ id }}")
    await sink.check()
    await sink.close()


@pytest.mark.parametrize("exchange", ["", "amq.topic"])
async def test_a_check_finds_a_missing_right_to_write(
    destination: AmqpHarness, exchange: str
) -> None:
    sink = built(destination, exchange=exchange)
    await sink.check()
    destination.server.put_user(write="elsewhere")
    with pytest.raises(Misconfigured, match="the user has no right to the exchange, topic or"):
        await sink.check()


async def test_a_check_of_a_user_who_may_impersonate_others_delivers_nothing(
    destination: AmqpHarness, sink: Sink
) -> None:
    user = {"password": PASSWORD, "tags": "impersonator,administrator"}
    destination.server.manage("PUT", "users/relay", user)
    await sink.check()
    assert destination.messages() == []


async def test_a_check_finds_that_the_broker_blocks(destination: AmqpHarness, sink: Sink) -> None:
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        with pytest.raises(Temporary, match="alarm"):
            await sink.check()
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)


async def test_a_check_says_what_it_could_not_ask(destination: AmqpHarness, sink: Sink) -> None:
    assert await sink.check() is None
    to_exchange = built(destination, exchange="amq.topic")
    assert await to_exchange.check() == "not asked: whether a queue takes the routing key"


async def test_a_node_that_is_drained_is_left_and_its_events_wait(
    destination: AmqpHarness, lead: Event
) -> None:
    sink = built(destination, url=destination.server.url)
    await sink.send(lead)
    # What `rabbitmq-upgrade drain` and `revive` do.
    await asyncio.to_thread(destination.server.evaluate, "rabbit_maintenance:drain()")
    try:
        assert (await outcome(sink, replace(lead, id="evt_2"))).startswith("Temporary")
    finally:
        await asyncio.to_thread(destination.server.evaluate, "rabbit_maintenance:revive()")
    async with asyncio.timeout(DEADLINE_S):
        while await outcome(sink, replace(lead, id="evt_2")) != "delivered":
            await asyncio.sleep(0.05)
    await sink.close()


async def test_a_message_that_is_too_large_fails_no_other(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    await destination.fail("larger than the broker takes")
    small = [replace(lead, id=f"evt_{number}", body=b"{}") for number in range(20)]
    outcomes = await asyncio.gather(*(outcome(sink, each) for each in [*small, lead, *small]))
    assert [each for each in outcomes if each.startswith("Refused")] == [outcomes[20]]


async def test_two_of_one_id_are_both_found_unroutable(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    await destination.fail("no queue takes the routing key")
    twins = [replace(lead, source=source) for source in ("main", "other", "third")]
    outcomes = await asyncio.gather(*(outcome(sink, each) for each in twins))
    assert {each.partition(":")[0] for each in outcomes} == {"Misconfigured"}


async def test_a_routing_key_that_is_too_long_is_refused(
    destination: AmqpHarness, lead: Event
) -> None:
    sink = built(destination, routing_key="{{ id }}")
    with pytest.raises(Refused, match="255 bytes"):
        await sink.send(replace(lead, body=b'{"id":"%s"}' % (b"x" * 256)))
    await sink.close()


async def test_a_long_id_travels_whole_in_the_header(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    long = replace(lead, id="ü" * 255)
    await sink.send(long)
    message = destination.server.read(destination.queue)[0]
    assert message.headers["relay-id"] == long.id
    assert len(str(message.message_id)) == 64


async def test_a_memory_alarm_is_temporary_within_the_timeout(
    destination: AmqpHarness, lead: Event
) -> None:
    sink = built(destination, timeout="1s")
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        with pytest.raises(Temporary, match="alarm"):
            await sink.send(lead)
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)
    await sink.send(replace(lead, id="evt_next"))
    await sink.close()


async def test_a_connection_that_failed_is_forgotten_in_silence(lead: Event) -> None:
    harness = AmqpHarness()
    harness.table = lambda: {"url": "amqp://127.0.0.1:1"}  # type: ignore[method-assign]
    gc.disable()
    try:
        assert (await outcome(built(harness), lead)).startswith("Temporary")
        # A coroutine that began there, without a loop, would be a warning, which fails a test.
        await asyncio.to_thread(gc.collect)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"url": "http://127.0.0.1"}, "url: expected amqp://"),
        ({"url": "amqp://127.0.0.1/?no_verify_ssl=1"}, "url: nothing may follow"),
        ({"url": "amqp://127.0.0.1", "ca_file": "x"}, "url: expected amqps://"),
        ({"url": "amqps://127.0.0.1", "ca_file": "/nowhere"}, "ca_file: cannot be read"),
        ({"url": "amqps://127.0.0.1", "client_key_file": "x"}, "client_key_file: needs"),
        ({"routing_key": "{{ nothing }}"}, "routing_key: "),
        ({"routing_key": "x" * 256}, "routing_key: is longer"),
        ({"exchange": "x" * 128}, "exchange: expected at most 127 letters"),
        ({"exchange": "{nowhere}"}, "exchange: expected at most 127 letters"),
    ],
)
def test_a_bad_value_is_named(changed: dict[str, str], fault: str) -> None:
    table = {"url": "amqp://127.0.0.1", **changed}
    harness = AmqpHarness()
    harness.table = lambda: table  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=fault):
        built(harness)


def test_samples_render(lead: Event) -> None:
    harness = AmqpHarness()
    harness.table = lambda: {"url": "amqp://127.0.0.1"}  # type: ignore[method-assign]
    shown = built(harness).render(sample_events.event(LEAD_CAPTURED, event_id=lead.id))
    assert shown["routing_key"] == LEAD_CAPTURED
