"""The `amqp` sink against a real RabbitMQ, beyond what every sink does."""

import asyncio
import gc
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sink import Sink
from tests.brokers.rabbitmq import PASSWORD
from tests.sinks.amqp.conftest import Make
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.conformance import built
from tests.stub_server import DEADLINE_S


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
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(format="cloudevents")
    await sink.send(lead)
    await sink.close()
    headers = destination.server.read(destination.queue)[0].headers
    assert headers["cloudEvents_id"] == lead.id
    assert headers["cloudEvents_type"] == LEAD_CAPTURED


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


async def test_a_missing_exchange_is_named(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(exchange="nowhere")
    assert await outcome(sink, lead) == "Misconfigured: there is no exchange nowhere"
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()


async def test_a_check_misses_the_queue(destination: AmqpHarness, sink: Sink) -> None:
    await destination.fail("no queue takes the routing key")
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()


async def test_a_check_does_not_take_a_brace_for_a_template(
    destination: AmqpHarness, make: Make
) -> None:
    sink = make(routing_key="{nowhere}")
    with pytest.raises(Misconfigured, match="does not exist"):
        await sink.check()
    queue = f"queues/%2F/{quote('{nowhere}')}"
    await asyncio.to_thread(destination.server.manage, "PUT", queue, {})
    await sink.check()
    await asyncio.to_thread(destination.server.manage, "DELETE", queue, {})


async def test_a_check_does_not_guess_what_a_template_will_name(
    destination: AmqpHarness, make: Make
) -> None:
    sink = make(routing_key="{{ id }}")
    await sink.check()


@pytest.mark.parametrize("exchange", ["", "amq.topic"])
async def test_a_check_finds_a_missing_right_to_write(
    destination: AmqpHarness, make: Make, exchange: str
) -> None:
    sink = make(exchange=exchange)
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


async def test_a_check_says_what_it_could_not_ask(
    destination: AmqpHarness, sink: Sink, make: Make
) -> None:
    assert await sink.check() is None
    to_exchange = make(exchange="amq.topic")
    assert await to_exchange.check() == "not asked: whether a queue takes the routing key"


async def test_a_node_that_is_drained_is_left_and_its_events_wait(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(url=destination.server.url)
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


async def test_a_long_id_travels_whole_in_the_header(
    destination: AmqpHarness, sink: Sink, lead: Event
) -> None:
    long = replace(lead, id="ü" * 255)
    await sink.send(long)
    message = destination.server.read(destination.queue)[0]
    assert message.headers["relay-id"] == long.id
    assert len(str(message.message_id)) == 64


async def test_a_memory_alarm_is_temporary_within_the_timeout(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        with pytest.raises(Temporary, match="alarm"):
            await sink.send(lead)
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)
    await sink.send(replace(lead, id="evt_next"))


async def test_a_connection_that_failed_is_forgotten_in_silence(lead: Event) -> None:
    gc.disable()
    try:
        assert (await outcome(built("amqp", url="amqp://127.0.0.1:1"), lead)).startswith(
            "Temporary"
        )
        # A coroutine that began there, without a loop, would be a warning, which fails a test.
        await asyncio.to_thread(gc.collect)
    finally:
        gc.enable()
