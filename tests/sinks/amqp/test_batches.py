"""What becomes of a batch of the `amqp` sink at a real RabbitMQ: each event has its own end."""

import asyncio
import gc
import re
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured, Refused
from relay.core.event import Event
from relay.sinks.amqp import publisher as amqp_publisher
from relay.sinks.amqp.sink import AmqpSink
from tests.sinks.amqp.conftest import Make
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.batch import DELIVERED, series, told
from tests.stub_server import until

FORBIDDEN = (Misconfigured, "the user may not write to the exchange, or to this topic")
TOO_LARGE = (Refused, "larger than the broker's max_message_size")
BY_SOURCE = {"routing_key": "{{ source }}"}
"""So that each event says which queue it is for."""


def bound_for(lead: Event, *queues: str) -> list[Event]:
    return [replace(lead, id=f"evt_{n}", source=queue) for n, queue in enumerate(queues)]


def unroutable(event: Event) -> Any:
    return Misconfigured, f"no queue takes the routing key of {event.kind}"


def read(destination: AmqpHarness) -> list[str]:
    return [str(message.message_id) for message in destination.server.read(destination.queue)]


async def test_properties_that_do_not_fit_into_a_frame_are_refused_and_harm_no_other(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make()
    assert told([await sink.send(lead)]) == [DELIVERED]
    assert sink._publisher is not None
    room = int(sink._publisher.connection.properties_max)
    # A long id stands in a header, and as a digest in the message's id.
    largest = replace(lead, id="x" * 1000)
    largest = replace(largest, id="x" * (1000 + room - len(sink._properties(largest).marshal())))
    events = [*series(lead, 3), largest, replace(largest, id=f"{largest.id}x")]
    assert told(await sink.send_batch(events)) == [
        *[DELIVERED] * 4,
        (Refused, "the properties are larger than a frame of the broker's (frame_max)"),
    ]
    assert destination.contacts() == 1


async def test_an_event_that_is_too_large_costs_its_neighbours_no_attempt_and_no_connection(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    await asyncio.to_thread(destination.server.limit, 5000)
    sink = make()
    for _ in range(5):
        batches = [series(lead, 32, source=source) for source in ("one", "two")]
        for batch in batches:
            batch[5] = replace(batch[5], body=lead.body.ljust(5001))
        outcomes = await asyncio.gather(*map(sink.send_batch, batches))
        assert [told(batch) for batch in outcomes] == [
            [DELIVERED] * 5 + [TOO_LARGE] + [DELIVERED] * 26
        ] * 2
    assert destination.contacts() == 1


async def test_each_message_is_tried_alone_if_the_broker_does_not_name_the_one_that_is_too_large(
    destination: AmqpHarness, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(destination.server.limit, 5000)
    monkeypatch.setattr(amqp_publisher, "_SIZE", re.compile("never said"))
    sink = make()
    events = series(lead, 3, body=lead.body.ljust(5001))
    events[1] = replace(events[1], body=lead.body)
    assert told(await sink.send_batch(events)) == [TOO_LARGE, DELIVERED, TOO_LARGE]


async def test_a_forbidden_topic_of_one_event_fails_no_other(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    async with destination.server.channel() as channel:
        queue = await channel.get_queue(destination.queue)
        await queue.bind("amq.topic", "#")
    rights = {"exchange": "amq.topic", "write": "^good", "read": ".*"}
    destination.server.manage("PUT", "topic-permissions/%2F/relay", rights)
    try:
        sink = make(exchange="amq.topic", **BY_SOURCE)
        outcomes = await sink.send_batch(bound_for(lead, "good", "bad", "good", "bad", "good"))
    finally:
        destination.server.manage("DELETE", "topic-permissions/%2F/relay")
    assert told(outcomes) == [DELIVERED, FORBIDDEN, DELIVERED, FORBIDDEN, DELIVERED]
    assert set(read(destination)) == {"evt_0", "evt_2", "evt_4"}


async def test_a_message_that_cannot_be_encoded_fails_alone(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    events = series(lead, 3)
    events[1] = replace(events[1], received_ms=-5000)
    outcomes = await make().send_batch(events)
    assert isinstance(outcomes[1], Exception)
    assert told([outcomes[0], outcomes[2]]) == [DELIVERED, DELIVERED]
    assert read(destination) == ["evt_0", "evt_2"]


def remembered(sink: AmqpSink) -> list[Any]:
    """List what is kept of messages, ours and the library's."""
    # The traceback of a returned message is a cycle, which holds what its frames do.
    gc.collect()
    publisher = sink._publisher
    assert publisher is not None
    kept = (publisher._channel.message_id_delivery_tag, publisher._channel.confirmations)
    return [*publisher._turns, *kept[0], *kept[1]]


async def test_events_of_one_id_find_each_its_own_and_nothing_is_remembered_of_them(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(**BY_SOURCE)
    queues = ["nowhere", destination.queue, "elsewhere", destination.queue]
    twins = [replace(lead, source=queue) for queue in queues]
    wanted = [unroutable(lead), DELIVERED] * 2
    batches = (twins, twins[::-1], twins)
    found = await asyncio.gather(*(sink.send_batch(batch) for batch in batches))
    assert [told(outcomes) for outcomes in found] == [wanted, wanted[::-1], wanted]
    assert read(destination) == [lead.id] * 6
    # A broker confirms a message only after it has returned it.
    await until(lambda: remembered(sink) == [], what="every confirm")
