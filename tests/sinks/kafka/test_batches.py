"""What becomes of events that the `kafka` sink is given together."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import count

import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import LEAD_CAPTURED, WEBHOOK_TEST, Event
from tests.brokers.kafka import TOPIC
from tests.brokers.kafka_mock import PARTITIONS, PRODUCE
from tests.sinks.batch import kinds
from tests.sinks.kafka.harness import KafkaHarness, Sinks
from tests.sinks.kafka.murmur2 import murmur2
from tests.stub_server import until

TOO_LARGE = 10
FORBIDDEN = 29
OUT_OF_ORDER = 45
"""Ends the idempotent producer where no earlier request has failed."""
LARGE_BYTES = 20_000


def leads(amount: int, prefix: str = "evt") -> list[Event]:
    return [sample_events.event(LEAD_CAPTURED, event_id=f"{prefix}_{n}") for n in range(amount)]


def ids(events: Sequence[Event]) -> list[str]:
    return [event.id for event in events]


def arrived(harness: KafkaHarness) -> list[str]:
    """List all events that are there; those of one partition in their order."""
    return [record.headers["relay-id"] for record in harness.cluster.read()]


def lead_for(partition: int) -> Event:
    """Make an event whose id, as its key, has this partition."""
    names = (f"evt_{number}" for number in count())
    event_id = next(name for name in names if partition_of(name) == partition)
    return sample_events.event(LEAD_CAPTURED, event_id=event_id)


def partition_of(key: str) -> int:
    return (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS


async def test_those_of_one_partition_are_one_request_in_their_order(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="one")
    await sink.check()
    events = leads(30)
    assert kinds(await sink.send_batch(events)) == [SinkResponse] * 30
    assert arrived(harness) == ids(events)
    assert harness.cluster.tell("requests").count(PRODUCE) == 1


async def test_each_outcome_names_the_place_of_its_event(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="{{ id }}")
    events = leads(30)
    outcomes = await sink.send_batch(events)
    told = {
        event.id: outcome.excerpt
        for event, outcome in zip(events, outcomes, strict=True)
        if isinstance(outcome, SinkResponse)
    }
    partitions: defaultdict[int, list[str]] = defaultdict(list)
    for record in harness.cluster.read():
        partitions[record.partition].append(record.headers["relay-id"])
    assert set(partitions) == set(range(PARTITIONS))
    assert told == {
        event_id: f"{TOPIC}, partition {partition}, offset {offset}"
        for partition, there in partitions.items()
        for offset, event_id in enumerate(there)
    }
    assert harness.cluster.tell("requests").count(PRODUCE) <= PARTITIONS


async def test_events_without_a_key_share_partitions(harness: KafkaHarness, make: Sinks) -> None:
    await make().send_batch(
        [sample_events.event(WEBHOOK_TEST, event_id=f"evt_{number}") for number in range(12)]
    )
    records = harness.cluster.read()
    assert len(records) == 12
    # The client moves on after a second, which a busy machine may take.
    assert len({record.partition for record in records}) < 6


async def test_order_is_kept_in_batches_larger_than_one_request(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="one")
    await sink.check()
    rounds = [[large(event) for event in leads(10, prefix)] for prefix in ("a", "b")]
    outcomes = await asyncio.gather(*(sink.send_batch(events) for events in rounds))
    assert [kinds(each) for each in outcomes] == [[SinkResponse] * 10] * 2
    assert arrived(harness) == [event.id for events in rounds for event in events]
    assert 7 <= harness.cluster.tell("requests").count(PRODUCE) <= 8


async def test_an_event_larger_than_a_batch_goes_out_by_itself(
    harness: KafkaHarness, make: Sinks
) -> None:
    before, huge, after = leads(3)
    huge = replace(huge, body=huge.body.ljust(300_000))
    sink = make(key="one")
    assert kinds(await sink.send_batch([before, huge, after])) == [SinkResponse] * 3
    assert [len(record.value) for record in harness.cluster.read()] == [
        len(event.body) for event in (before, huge, after)
    ]


async def test_a_small_event_is_not_refused_for_another_in_its_batch(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="one")
    await sink.check()
    events = leads(8)
    # All of them, then each by itself up to the sixth, which is the one.
    for code in (TOO_LARGE, 0, 0, 0, 0, 0, TOO_LARGE):
        harness.cluster.tell("push", PRODUCE, 1, code)
    outcomes = await sink.send_batch(events)
    assert kinds(outcomes) == [SinkResponse] * 5 + [Refused] + [SinkResponse] * 2
    assert arrived(harness) == [event.id for event in events if event is not events[5]]


async def test_a_refusal_leaves_the_batch_behind_it_alone(
    harness: KafkaHarness, make: Sinks
) -> None:
    sink = make(key="one")
    await sink.check()
    (refused,), others = [alone(event) for event in leads(1, "large")], leads(5)
    harness.cluster.tell("push", PRODUCE, 1, TOO_LARGE)
    first, second = await asyncio.gather(sink.send_batch([refused]), sink.send_batch(others))
    assert (kinds(first), kinds(second)) == ([Refused], [SinkResponse] * 5)
    assert arrived(harness) == ids(others)


async def test_a_refusal_leaves_other_partitions_alone(harness: KafkaHarness, make: Sinks) -> None:
    # One request is for all partitions that share a leader, and the mock chooses leaders at random.
    for partition in range(PARTITIONS):
        harness.cluster.tell("lead", TOPIC, partition, 1 + partition % 3)
    sink = make(key="{{ id }}")
    await sink.check()
    events = [alone(lead_for(partition)) for partition in range(PARTITIONS)]
    harness.cluster.tell("push", PRODUCE, 1, TOO_LARGE)
    outcomes = await sink.send_batch(events)
    assert set(kinds(outcomes)) == {SinkResponse, Refused}
    taken = [
        event.id
        for event, outcome in zip(events, outcomes, strict=True)
        if isinstance(outcome, SinkResponse)
    ]
    assert sorted(arrived(harness)) == sorted(taken)


async def test_a_partition_without_a_leader_holds_up_only_its_own_events(
    harness: KafkaHarness, make: Sinks
) -> None:
    harness.cluster.tell("lead", TOPIC, 0, -1)
    sink = make(key="{{ id }}")
    events = [lead_for(partition) for partition in range(PARTITIONS)]
    outcomes = await sink.send_batch(events)
    assert kinds(outcomes) == [Temporary, *[SinkResponse] * (PARTITIONS - 1)]
    harness.cluster.tell("lead", TOPIC, 0, 1)
    await sink.send(events[0])
    assert sorted(arrived(harness)) == sorted(ids(events))


async def test_abandoned_messages_are_not_sent_while_others_are_in_flight(
    harness: KafkaHarness, make: Sinks
) -> None:
    for partition in range(3):
        harness.cluster.tell("lead", TOPIC, partition, partition + 1)
    sink = make(key="{{ id }}", timeout="2s")
    stuck, other, quick = (lead_for(partition) for partition in range(3))
    await sink.send(quick)
    for broker in (1, 2):
        harness.cluster.tell("down_one", broker)
    giving_up = asyncio.create_task(sink.send_batch([stuck]))
    await sink.send(quick)  # so that the producer is not given up with it
    await asyncio.sleep(0.8)
    waiting = asyncio.create_task(sink.send_batch([other]))
    assert kinds(await giving_up) == [Temporary]
    harness.cluster.tell("up_one", 1)
    assert not waiting.done()
    assert kinds(await waiting) == [Temporary]
    harness.cluster.tell("up_one", 2)
    assert arrived(harness) == [quick.id] * 2


@pytest.mark.parametrize(
    ("code", "expected"), [(FORBIDDEN, Misconfigured), (OUT_OF_ORDER, Temporary)]
)
async def test_a_producer_that_is_replaced_still_delivers_what_it_has(
    harness: KafkaHarness, make: Sinks, code: int, expected: type
) -> None:
    for partition in range(PARTITIONS):
        harness.cluster.tell("lead", TOPIC, partition, min(partition + 1, 3))
    sink = make(key="{{ id }}", timeout="10s")
    failing, slow, later = (lead_for(partition) for partition in range(3))
    await sink.send(slow)
    harness.cluster.tell("delay_one", 2, 1000)
    sending = asyncio.create_task(sink.send_batch([slow]))
    requests = partial(harness.cluster.tell, "requests")
    await until(lambda: requests().count(PRODUCE) == 2, what="the record in flight")
    harness.cluster.tell("push", PRODUCE, 1, code)
    failed = await sink.send_batch([failing])
    assert kinds(failed) == [expected]
    assert kinds(await sink.send_batch([later])) == [SinkResponse]
    assert kinds(await sending) == [SinkResponse]
    harness.cluster.tell("delay_one", 2, 0)
    assert sorted(arrived(harness)) == sorted([slow.id, slow.id, later.id])


def large(event: Event) -> Event:
    """One of which three share a request."""
    return replace(event, body=event.body.ljust(LARGE_BYTES))


def alone(event: Event) -> Event:
    """One that has a request for itself, so that its refusal is its own."""
    return replace(event, body=event.body.ljust(100_000))
