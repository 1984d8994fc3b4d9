"""What the `kafka` sink does with a real Apache Kafka, killed and frozen too."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.sink import Outcomes
from relay.sinks.kafka.sink import KafkaSink
from tests.brokers.apache_kafka import PARTITIONS, ApacheKafka
from tests.conftest import ManualClock
from tests.sinks.batch import kinds
from tests.sinks.kafka.harness import KafkaHarness, Sinks

pytestmark = pytest.mark.long

DEADLINE_S = 60.0
TIMEOUT_S = 2.0


class RealKafka(KafkaHarness):
    """Settings for the real broker."""

    def __init__(self, server: ApacheKafka) -> None:
        self._server = server

    def table(self) -> dict[str, object]:
        return {"brokers": self._server.brokers}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    server = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: ApacheKafka, clock: ManualClock) -> AsyncIterator[Sinks]:
    sinks = Sinks(RealKafka(server), clock)
    yield sinks
    for sink in sinks.made:
        await sink.close()


def leads(amount: int, prefix: str = "evt") -> list[Event]:
    return [sample_events.event(LEAD_CAPTURED, event_id=f"{prefix}_{n}") for n in range(amount)]


def arrived(server: ApacheKafka, topic: str) -> list[str]:
    return [record.headers["relay-id"] for record in server.read(topic)]


async def test_events_spread_over_the_partitions_and_keep_their_order_by_key(
    server: ApacheKafka, make: Sinks
) -> None:
    server.create("spread")
    sink = make(topic="spread", key="{{ source }}")
    events = [replace(event, source=f"source-{n % 9}") for n, event in enumerate(leads(180))]
    for start in range(0, len(events), 60):
        outcomes = await sink.send_batch(events[start : start + 60])
        assert kinds(outcomes) == [SinkResponse] * 60
    partitions, orders = defaultdict(set), defaultdict(list)
    for record in server.read("spread"):
        partitions[record.key].add(record.partition)
        orders[record.key].append(record.headers["relay-id"])
    assert set.union(*partitions.values()) == set(range(PARTITIONS))
    assert {len(numbers) for numbers in partitions.values()} == {1}
    assert orders == {
        f"source-{n}": [event.id for event in events if event.source == f"source-{n}"]
        for n in range(9)
    }


async def test_a_missing_topic_is_misconfigured_and_named(make: Sinks, lead: Event) -> None:
    sink = make(topic="missing")
    for trial in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match="the topic missing does not exist"):
            await trial


async def test_an_event_larger_than_the_topic_takes_is_refused_alone(
    server: ApacheKafka, make: Sinks
) -> None:
    server.create("small", **{"max.message.bytes": "3000"})
    events = leads(11)
    events[5] = replace(events[5], body=events[5].body.ljust(5_000))
    outcomes = await make(topic="small", key="one").send_batch(events)
    assert kinds(outcomes) == [SinkResponse] * 5 + [Refused] + [SinkResponse] * 5
    assert arrived(server, "small") == [event.id for event in events if event is not events[5]]


async def test_confirmed_messages_survive_a_kill_of_the_broker(
    server: ApacheKafka, make: Sinks
) -> None:
    server.create("killed")
    sink = make(topic="killed", timeout=f"{TIMEOUT_S:g}s")
    confirmed: list[str] = []
    sending = asyncio.create_task(send_on(sink, confirmed))
    await until_more(confirmed, than=200)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)
    await until_more(confirmed, than=len(confirmed) + 200)
    sending.cancel()
    await asyncio.wait({sending})
    assert set(confirmed) <= set(await asyncio.to_thread(arrived, server, "killed"))


async def test_a_frozen_broker_is_given_up_in_time_and_used_again(
    server: ApacheKafka, make: Sinks, lead: Event
) -> None:
    server.create("frozen")
    sink = make(topic="frozen", timeout=f"{TIMEOUT_S:g}s")
    await sink.send(lead)
    server.freeze()
    try:
        for _ in range(2):
            async with asyncio.timeout(TIMEOUT_S):
                with pytest.raises(Temporary, match="in time"):
                    await sink.send(lead)
    finally:
        server.thaw()
    after = replace(lead, id="evt_after")
    await until_taken(sink, after)
    assert arrived(server, "frozen")[-1] == after.id


async def send_on(sink: KafkaSink, confirmed: list[str]) -> None:
    """Send batches until cancelled, and note each event that the sink confirms."""
    for number in count():
        events = leads(20, f"evt_{number}")
        outcomes = await sink.send_batch(events)
        confirmed += taken(events, outcomes)
        await asyncio.sleep(0.01)


def taken(events: Sequence[Event], outcomes: Outcomes) -> list[str]:
    pairs = zip(events, outcomes, strict=True)
    return [event.id for event, outcome in pairs if isinstance(outcome, SinkResponse)]


async def until_more(confirmed: list[str], *, than: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(confirmed) <= than:
            await asyncio.sleep(0.02)


async def until_taken(sink: KafkaSink, event: Event) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not taken([event], await sink.send_batch([event])):
            await asyncio.sleep(0.1)
