"""What becomes of a batch of the `amqp` sink when RabbitMQ falls silent, or when it is given up."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from relay.core.errors import Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes
from relay.sinks.amqp.sink import AmqpSink
from tests.sinks.amqp.conftest import Make
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.amqp.test_batches import BY_SOURCE, bound_for, read, remembered, unroutable
from tests.sinks.batch import DELIVERED, series, told
from tests.stub_server import until

LATE = (Temporary, "no answer within 1 s")
BLOCKED = (Temporary, "the broker blocks publishers: its memory or disk alarm is on")
LOST = (Temporary, "the connection was lost")

PROCESS = '{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{}">>)), {}'
"""In Erlang: finds a queue, and does something with it."""


@pytest.fixture
async def stuck(destination: AmqpHarness) -> AsyncIterator[str]:
    """Name a queue that confirms nothing until the test is over."""
    name = f"{destination.queue}-stuck"
    await destination.server.put_queue(name)
    await evaluate(destination, name, "sys:suspend(amqqueue:get_pid(Q))")
    yield name
    await evaluate(destination, name, "sys:resume(amqqueue:get_pid(Q))")
    await destination.server.drop_queue(name)


async def evaluate(destination: AmqpHarness, queue: str, what: str) -> None:
    await asyncio.to_thread(destination.server.evaluate, PROCESS.format(queue, what))


def heard(sink: AmqpSink) -> int:
    """The number of the last that was answered, in the order of publishing."""
    return 0 if sink._publisher is None else sink._publisher._answered


def published(sink: AmqpSink) -> int:
    return 0 if sink._publisher is None else sink._publisher._published


async def test_two_of_one_id_are_never_unconfirmed_at_once(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await sink.send(replace(lead, id="evt_before"))
    destination.door.is_mute = True
    twins = [replace(lead, source=source) for source in ("main", "other")]
    found = await asyncio.gather(sink.send_batch(twins), sink.send_batch(twins))
    assert [told(outcomes) for outcomes in found] == [[LATE] * 2] * 2
    destination.door.is_mute = False
    assert read(destination) == ["evt_before", lead.id]


async def test_a_time_limit_hits_only_what_has_no_confirm_by_then(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, destination.queue, stuck, "nowhere", destination.queue)
    found = told(await sink.send_batch(events))
    assert found == [DELIVERED, LATE, unroutable(lead), DELIVERED]
    # What came later was confirmed: it is one queue that is stuck, and not the broker.
    assert told(await sink.send_batch(bound_for(lead, destination.queue))) == [DELIVERED]
    assert destination.contacts() == 1


async def test_an_id_without_a_confirm_holds_up_no_other_event_of_that_id_for_ever(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, stuck, destination.queue)
    assert told(await sink.send_batch(events)) == [LATE, DELIVERED]
    twins = [replace(events[0], source=queue) for queue in ("nowhere", destination.queue)]
    assert told(await sink.send_batch(twins)) == [unroutable(lead), DELIVERED]
    assert destination.contacts() == 1


async def test_a_late_confirm_is_not_taken_for_another_event(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, stuck, destination.queue)
    assert told(await sink.send_batch(events)) == [LATE, DELIVERED]
    await evaluate(destination, stuck, "sys:resume(amqqueue:get_pid(Q))")
    assert told(await sink.send_batch(events)) == [DELIVERED, DELIVERED]
    assert remembered(sink) == []


async def test_events_confirmed_before_a_broker_fell_silent_are_delivered(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, destination.queue, destination.queue, stuck)
    assert told(await sink.send_batch(events)) == [DELIVERED, DELIVERED, LATE]
    # Nothing of what is there still may come later.
    await until(lambda: destination.connections() == 0, what="the end of the connection")


async def test_a_loss_ends_a_batch_at_once_and_keeps_what_was_confirmed(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="30s")
    sending = asyncio.create_task(
        sink.send_batch(bound_for(lead, destination.queue, stuck, destination.queue, stuck))
    )
    await until(lambda: heard(sink) == 3, what="the confirm of the third")
    started_s = time.monotonic()
    await destination.door.cut()
    assert told(await sending) == [DELIVERED, LOST, DELIVERED, LOST]
    assert time.monotonic() - started_s < 5
    assert told(await sink.send_batch(bound_for(lead, destination.queue))) == [DELIVERED]


async def test_an_event_that_waits_for_another_of_its_id_continues_when_that_one_is_lost(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="30s")
    twins = [replace(lead, source=queue) for queue in (stuck, destination.queue)]
    sending = asyncio.create_task(sink.send_batch(twins))
    await until(lambda: published(sink) == 1, what="the first of two of one id")
    started_s = time.monotonic()
    await destination.door.cut()
    assert told(await sending) == [LOST, DELIVERED]
    assert time.monotonic() - started_s < 5
    assert read(destination) == [lead.id]


async def test_a_batch_that_is_cancelled_while_it_waits_is_not_published(
    destination: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE)
    first = [*bound_for(lead, stuck), replace(lead, id="evt_0", source=destination.queue)]
    sending = asyncio.create_task(sink.send_batch(first))
    await until(lambda: published(sink) == 1, what="the first of two of one id")
    await give_up([sending])
    assert published(sink) == 1
    assert read(destination) == []


async def test_nothing_more_is_published_to_a_broker_that_is_known_to_block(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        # It says so only once somebody has published.
        assert told(await sink.send_batch(series(lead, 2))) == [BLOCKED] * 2
        events = [replace(lead, id="evt_2"), replace(lead, id="evt_3")]
        assert told(await sink.send_batch(events)) == [BLOCKED] * 2
        # The second batch has also looked whether a new connection is blocked.
        await until(lambda: destination.connections() == 1, what="the end of that connection")
        assert destination.contacts() == 2
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)
    assert told(await sink.send_batch([replace(lead, id="evt_after")])) == [DELIVERED]
    assert read(destination) == ["evt_0", "evt_1", "evt_after"]


async def test_a_broker_that_goes_on_blocking_is_left_for_one_that_does_not(
    destination: AmqpHarness, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(timeout="1s")
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        assert told(await sink.send_batch([lead])) == [BLOCKED]
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)
    old = sink._publisher
    assert old is not None

    async def is_blocked() -> bool:
        return True

    # As if the alarm went on there, while new connections lead to another broker.
    monkeypatch.setattr(old.connection, "is_blocked", is_blocked)
    assert told(await sink.send_batch([replace(lead, id="evt_after")])) == [DELIVERED]
    await until(lambda: destination.connections() == 1, what="the end of the blocked connection")


async def test_the_end_of_a_blocked_connection_ends_its_batch(
    destination: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="30s")
    await asyncio.to_thread(destination.server.let_memory, 0.00001)
    try:
        first = asyncio.create_task(sink.send_batch([lead]))  # the broker blocks those who publish
        await until(lambda: published(sink) == 1, what="the first message")
        publisher = sink._publisher
        assert publisher is not None
        while not await publisher.connection.is_blocked():
            await asyncio.sleep(0.01)
        second = asyncio.create_task(sink.send_batch(series(lead, 2)))
        await asyncio.sleep(0.05)
        started_s = time.monotonic()
        await destination.door.shut()
        outcomes = told(await second)
        await asyncio.wait({first})
        assert outcomes == [(Temporary, "connection refused")] * 2
        assert time.monotonic() - started_s < 5
    finally:
        await asyncio.to_thread(destination.server.let_memory, 0.4)


async def give_up(sending: Sequence[asyncio.Task[Outcomes]]) -> None:
    for task in sending:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(sending)
    assert all(task.cancelled() for task in sending)
