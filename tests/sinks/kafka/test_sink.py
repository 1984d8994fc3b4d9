"""What the `kafka` sink does beyond the facts that hold for every sink."""

import asyncio
import os

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.errors import Misconfigured
from relay.core.event import WEBHOOK_TEST, Event
from relay.sinks.kafka.sink import Settings, build
from tests.brokers.kafka import TOPIC
from tests.brokers.kafka_mock import INIT_PRODUCER_ID, PARTITIONS, PRODUCE
from tests.conftest import ManualClock
from tests.sinks.kafka.harness import KafkaHarness, Sinks
from tests.stub_server import until

JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys and what the Java client's murmur2 makes of them (Apache Kafka, UtilsTest)."""


async def test_the_key_is_the_videos_id_and_the_headers_name_the_event(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    await make(format="cloudevents").send(lead)
    (record,) = harness.cluster.read()
    assert record.key == lead.video_id()
    assert record.headers["relay-id"] == lead.id
    assert record.headers["ce_type"]
    assert record.headers["content-type"] == "application/json"


async def test_an_event_without_a_video_has_no_key(harness: KafkaHarness, make: Sinks) -> None:
    await make().send(sample_events.event(WEBHOOK_TEST, event_id="evt_test"))
    (record,) = harness.cluster.read()
    assert record.key is None


async def test_a_key_has_the_partition_that_java_gives_it(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    for key in JAVA:
        await make(key=key).send(lead)
    expected = {key: (value & 0x7FFFFFFF) % PARTITIONS for key, value in JAVA.items()}
    assert {each.key: each.partition for each in harness.cluster.read()} == expected


async def test_a_topic_can_be_of_the_event(harness: KafkaHarness, make: Sinks, lead: Event) -> None:
    harness.cluster.tell("create", "t.lead.captured")
    sink = make(topic="t.{{ event }}")
    await sink.send(lead)
    await sink.check()
    assert [each.topic for each in harness.cluster.read()] == ["t.lead.captured"]
    assert sink.render(replace(lead, kind="a b"))["topic"] == "t.lead.captured"


@pytest.mark.parametrize(("code", "reason"), [(3, "does not exist"), (29, "may not write")])
async def test_a_topic_that_cannot_be_written_to_is_named(
    harness: KafkaHarness, make: Sinks, lead: Event, code: int, reason: str
) -> None:
    harness.cluster.tell("topic_error", TOPIC, code)
    sink = make()
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match=f"{reason}|{TOPIC}.*{reason}") as caught:
            await trial
        assert TOPIC in caught.value.reason
    harness.cluster.tell("topic_error", TOPIC, 0)
    await sink.send(lead)


async def test_a_producer_whose_batch_failed_is_replaced(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    def producers() -> int:
        return int(harness.cluster.tell("requests").count(INIT_PRODUCER_ID))

    sink = make()
    await sink.send(lead)
    await sink.send(lead)
    assert producers() == 1
    await harness.fail("the user may not write to the topic")
    with pytest.raises(Misconfigured):
        await sink.send(lead)
    await harness.recover()
    await sink.send(lead)
    assert producers() == 2


async def test_cancelled_messages_are_not_sent_later(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    sink = make(key="one")
    await harness.fail("fewer replicas than the topic demands")
    sending = asyncio.create_task(sink.send(lead))
    await until(lambda: PRODUCE in harness.cluster.tell("requests"), what="the first attempt")
    sending.cancel()
    await asyncio.wait({sending})
    await harness.recover()
    await sink.send(replace(lead, id="evt_next"))
    assert [each.id for each in harness.messages()] == ["evt_next"]


async def test_one_reachable_broker_is_enough(
    harness: KafkaHarness, make: Sinks, lead: Event
) -> None:
    await make(brokers=["127.0.0.1:1", *harness.cluster.brokers.split(",")]).send(lead)
    assert len(harness.messages()) == 1


async def test_a_real_cluster_takes_an_event(clock: ManualClock, lead: Event) -> None:
    brokers = os.environ.get("RELAY_TEST_KAFKA")
    if brokers is None:
        pytest.skip("declared: RELAY_TEST_KAFKA names no brokers")
    sink = build(Settings(name="tested", type="kafka", brokers=brokers), clock)
    try:
        await sink.check()
        place = (await sink.send(lead)).excerpt
    finally:
        await sink.close()
    _, partition, offset = (part.split()[-1] for part in place.split(", "))
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "tested"})
    consumer.assign([TopicPartition(TOPIC, int(partition), int(offset))])
    record = await asyncio.to_thread(consumer.poll, 10)
    consumer.close()
    assert record is not None
    assert ("relay-id", lead.id.encode()) in (record.headers() or [])
    assert record.value() == lead.body
