"""What becomes of a batch of the `amqp` sink when RabbitMQ falls silent, or when it is given up."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.errors import Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes
from relay.sinks.amqp.connection import Connection
from relay.sinks.amqp.sink import AmqpSink
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.amqp.test_batches import (
    BY_SOURCE,
    Make,
    bound_for,
    far_end,
    make,
    read,
    remembered,
    unroutable,
)
from tests.sinks.batch import DELIVERED, series, told
from tests.sinks.far_end import until

__all__ = ["far_end", "make"]  # fixtures

LATE = (Temporary, "no answer within 1 s")
BLOCKED = (Temporary, "the broker blocks publishers: its memory or disk alarm is on")
LOST = (Temporary, "the connection was lost")

PROCESS = '{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{}">>)), {}'
"""In Erlang: finds a queue, and does something with it."""


@pytest.fixture
async def stuck(far_end: AmqpHarness) -> AsyncIterator[str]:
    """Name a queue that confirms nothing until the test is over."""
    name = f"{far_end.queue}-stuck"
    await far_end.server.put_queue(name)
    await evaluate(far_end, name, "sys:suspend(amqqueue:get_pid(Q))")
    yield name
    await evaluate(far_end, name, "sys:resume(amqqueue:get_pid(Q))")
    await far_end.server.drop_queue(name)


async def evaluate(far_end: AmqpHarness, queue: str, what: str) -> None:
    await asyncio.to_thread(far_end.server.evaluate, PROCESS.format(queue, what))


def much(lead: Event) -> list[Event]:
    """More than the buffers of sockets hold, so that some of it has not left."""
    return series(lead, 24, body=b"x" * 900_000)


def heard(sink: AmqpSink) -> int:
    """The number of the last that was answered, in the order of publishing."""
    return 0 if sink._publisher is None else sink._publisher._answered


def published(sink: AmqpSink) -> int:
    return 0 if sink._publisher is None else sink._publisher._published


async def test_two_of_one_id_are_never_unconfirmed_at_once(
    far_end: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await sink.send(replace(lead, id="evt_before"))
    far_end.door.is_mute = True
    twins = [replace(lead, source=source) for source in ("main", "other")]
    found = await asyncio.gather(sink.send_batch(twins), sink.send_batch(twins))
    assert [told(outcomes) for outcomes in found] == [[LATE] * 2] * 2
    far_end.door.is_mute = False
    assert read(far_end) == ["evt_before", lead.id]


async def test_a_time_limit_hits_only_what_has_no_confirm_by_then(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, far_end.queue, stuck, "nowhere", far_end.queue)
    found = told(await sink.send_batch(events))
    assert found == [DELIVERED, LATE, unroutable(lead), DELIVERED]
    # What came later was confirmed: it is one queue that is stuck, and not the broker.
    assert told(await sink.send_batch(bound_for(lead, far_end.queue))) == [DELIVERED]
    assert far_end.contacts() == 1


async def test_an_id_without_a_confirm_holds_up_no_other_event_of_that_id_for_ever(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, stuck, far_end.queue)
    assert told(await sink.send_batch(events)) == [LATE, DELIVERED]
    twins = [replace(events[0], source=queue) for queue in ("nowhere", far_end.queue)]
    assert told(await sink.send_batch(twins)) == [unroutable(lead), DELIVERED]
    assert far_end.contacts() == 1


async def test_a_confirm_that_comes_too_late_is_nobody_elses(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, stuck, far_end.queue)
    assert told(await sink.send_batch(events)) == [LATE, DELIVERED]
    await evaluate(far_end, stuck, "sys:resume(amqqueue:get_pid(Q))")
    assert told(await sink.send_batch(events)) == [DELIVERED, DELIVERED]
    assert remembered(sink) == []


async def test_a_broker_that_freezes_is_left_in_time_and_takes_nothing_later(
    far_end: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="500ms", url=far_end.server.url)
    await sink.send(lead)
    far_end.server.freeze()
    events = much(lead)
    async with asyncio.timeout(5):
        late = (Temporary, "no answer within 0.5 s")
        assert told(await sink.send_batch(events)) == [late] * len(events)
    far_end.server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert len(read(far_end)) < 2 + len(events)


async def test_what_was_confirmed_before_a_broker_fell_silent_is_delivered(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="1s")
    events = bound_for(lead, far_end.queue, far_end.queue, stuck)
    assert told(await sink.send_batch(events)) == [DELIVERED, DELIVERED, LATE]
    # Nothing of what is there still may come later.
    await until(lambda: far_end.connections() == 0, what="the end of the connection")


async def test_a_loss_ends_a_batch_at_once_and_keeps_what_was_confirmed(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="30s")
    sending = asyncio.create_task(
        sink.send_batch(bound_for(lead, far_end.queue, stuck, far_end.queue, stuck))
    )
    await until(lambda: heard(sink) == 3, what="the confirm of the third")
    started_s = time.monotonic()
    await far_end.door.cut()
    assert told(await sending) == [DELIVERED, LOST, DELIVERED, LOST]
    assert time.monotonic() - started_s < 5
    assert told(await sink.send_batch(bound_for(lead, far_end.queue))) == [DELIVERED]


async def test_what_waits_for_one_of_its_id_goes_on_when_that_is_lost(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE, timeout="30s")
    twins = [replace(lead, source=queue) for queue in (stuck, far_end.queue)]
    sending = asyncio.create_task(sink.send_batch(twins))
    await until(lambda: published(sink) == 1, what="the first of two of one id")
    started_s = time.monotonic()
    await far_end.door.cut()
    assert told(await sending) == [LOST, DELIVERED]
    assert time.monotonic() - started_s < 5
    assert read(far_end) == [lead.id]


async def test_a_batch_that_is_cancelled_leaves_nothing_behind(
    far_end: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(url=far_end.server.url)
    await sink.send(lead)
    far_end.server.freeze()
    events = much(lead)
    sending = [asyncio.create_task(sink.send_batch(part)) for part in (events[:12], events[12:])]
    await until(lambda: published(sink) == 1 + len(events), what="the batches")
    await give_up(sending)
    far_end.server.thaw()
    await sink.send(replace(lead, id="evt_after"))
    assert len(read(far_end)) < 2 + len(events)


async def test_a_batch_that_is_cancelled_while_it_waits_is_not_published(
    far_end: AmqpHarness, make: Make, lead: Event, stuck: str
) -> None:
    sink = make(**BY_SOURCE)
    first = [*bound_for(lead, stuck), replace(lead, id="evt_0", source=far_end.queue)]
    sending = asyncio.create_task(sink.send_batch(first))
    await until(lambda: published(sink) == 1, what="the first of two of one id")
    await give_up([sending])
    assert published(sink) == 1
    assert read(far_end) == []


async def test_nothing_is_published_where_the_client_keeps_a_cancellation_for_itself(
    far_end: AmqpHarness, make: Make, lead: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Connection.open_channel
    asked = asyncio.Event()

    async def open_channel(connection: Connection) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await real(connection)

    monkeypatch.setattr(Connection, "open_channel", open_channel)
    sink = make()
    sending = asyncio.create_task(sink.send_batch(series(lead, 3)))
    await asked.wait()
    await give_up([sending])
    assert sending.cancelled()
    assert read(far_end) == []


async def test_nothing_more_is_published_to_a_broker_that_is_known_to_block(
    far_end: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="1s")
    await asyncio.to_thread(far_end.server.let_memory, 0.00001)
    try:
        # It says so only once somebody has published.
        assert told(await sink.send_batch(series(lead, 2))) == [BLOCKED] * 2
        events = [replace(lead, id="evt_2"), replace(lead, id="evt_3")]
        assert told(await sink.send_batch(events)) == [BLOCKED] * 2
    finally:
        await asyncio.to_thread(far_end.server.let_memory, 0.4)
    assert told(await sink.send_batch([replace(lead, id="evt_after")])) == [DELIVERED]
    assert read(far_end) == ["evt_0", "evt_1", "evt_after"]
    assert far_end.contacts() == 1


async def test_the_end_of_a_blocked_connection_ends_its_batch(
    far_end: AmqpHarness, make: Make, lead: Event
) -> None:
    sink = make(timeout="30s")
    await asyncio.to_thread(far_end.server.let_memory, 0.00001)
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
        await far_end.door.shut()
        outcomes = told(await second)
        await asyncio.wait({first})
        assert outcomes == [(Temporary, "connection refused")] * 2
        assert time.monotonic() - started_s < 5
    finally:
        await asyncio.to_thread(far_end.server.let_memory, 0.4)


async def give_up(sending: Sequence[asyncio.Task[Outcomes]]) -> None:
    for task in sending:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(sending)
    assert all(task.cancelled() for task in sending)
