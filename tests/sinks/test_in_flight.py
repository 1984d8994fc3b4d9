"""How much a sink holds while its destination confirms nothing: at most `concurrency` events."""

import asyncio
import gc
import tracemalloc
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.event import Event
from relay.outbound.batching import BatchOnlySink
from relay.sinks.amqp.sink import AmqpSink
from relay.sinks.kafka.sink import KafkaSink
from relay.sinks.nats.sink import NatsSink
from relay.sinks.redis.sink import RedisSink
from relay.sinks.sqs.sink import SqsSink
from tests.brokers import outage
from tests.brokers.door import Door
from tests.brokers.moto_sqs import MotoSqs
from tests.brokers.rabbitmq import RabbitMq
from tests.brokers.test_outage import Amqp, Kafka, Nats, Redis
from tests.conftest import ManualClock
from tests.sinks.conformance import Harness
from tests.sinks.harnesses import PARAMETERS
from tests.sinks.servers import shared
from tests.sinks.sqs.harness import SqsHarness
from tests.stub_server import until

CONCURRENCY = 8
FIRST = 10
BACKLOG = 200
WATCHED_S = 0.5
FOR_EVER_MS = 60_000
LIMITS = {"concurrency": CONCURRENCY, "timeout": "30s"}

BODY_BYTES = 200_000
ROUNDS = 4
"""Few, because a sink may connect anew in each, and a frozen server accepts no connection."""


class Silent(outage.Case):
    """A broker that can take everything and confirm nothing."""

    sink_class: type[Any]

    @abstractmethod
    async def silence(self) -> None: ...

    @abstractmethod
    async def recover(self) -> None:
        """Called once the sink is closed."""


class SilentKafka(Kafka, Silent):
    sink_class = KafkaSink

    def table(self) -> dict[str, Any]:
        return {**super().table(), **LIMITS}

    async def silence(self) -> None:
        self.cluster.tell("delay", FOR_EVER_MS)

    async def recover(self) -> None:
        self.cluster.tell("delay", 0)


class Muffled(Silent):
    """A server behind a door that keeps back what it says."""

    async def put_door(self, port: int) -> None:
        self.door = Door(port)
        await self.door.listen()

    def through_door(self, url: str) -> str:
        return url.replace(f":{self.door.leads_to}", f":{self.door.port}")

    async def silence(self) -> None:
        self.door.is_mute = True

    async def recover(self) -> None:
        await self.door.shut()


class SilentAmqp(Amqp, Muffled):
    sink_class = AmqpSink

    def start(self, folder: Path) -> RabbitMq:
        self.server = shared(RabbitMq)
        return self.server

    def stop(self) -> None:
        """It is shared."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.put_door(self.server.port)

    def table(self) -> dict[str, Any]:
        return {**super().table(), **LIMITS, "url": self.through_door(self.server.url)}


class SilentNats(Nats, Muffled):
    sink_class = NatsSink

    async def prepare(self) -> None:
        await super().prepare()
        await self.put_door(self.server.port)

    def table(self) -> dict[str, Any]:
        return {**super().table(), **LIMITS, "servers": self.through_door(self.server.url)}


class SilentRedis(Redis, Muffled):
    sink_class = RedisSink

    async def prepare(self) -> None:
        await super().prepare()
        await self.put_door(self.server.port)

    def table(self) -> dict[str, Any]:
        return {**super().table(), **LIMITS, "url": self.through_door(self.server.url)}


class SilentSqs(Silent):
    sink_type = "sqs"
    sink_class = SqsSink

    def __init__(self) -> None:
        self.harness = SqsHarness()

    def start(self, folder: Path) -> outage.Hurtable:
        return shared(MotoSqs)

    async def prepare(self) -> None:
        await self.harness.__aenter__()

    def table(self) -> dict[str, Any]:
        return {**self.harness.table(), **LIMITS}

    async def silence(self) -> None:
        self.harness.door.is_mute = True

    async def recover(self) -> None:
        await self.harness.__aexit__()

    def ids(self) -> Sequence[str]:
        return [each.id for each in self.harness.messages()]

    def stop(self) -> None:
        """It is shared."""


class Watch:
    """Counts the events that a type of sink was given and has not ended."""

    def __init__(self, sink_class: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.most = 0
        is_batching = issubclass(sink_class, BatchOnlySink)
        name = "send_batch" if is_batching else "send"
        real = getattr(sink_class, name)

        async def send(sink: Any, given: Any) -> Any:
            count = len(given) if is_batching else 1
            self.now += count
            self.most = max(self.most, self.now)
            try:
                return await real(sink, given)
            finally:
                self.now -= count

        monkeypatch.setattr(sink_class, name, send)


@pytest.mark.servers
@pytest.mark.parametrize("kind", [SilentAmqp, SilentKafka, SilentNats, SilentRedis, SilentSqs])
async def test_no_more_than_its_concurrency_is_unconfirmed(
    kind: type[Silent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = kind()
    watch = Watch(case.sink_class, monkeypatch)
    try:
        case.start(tmp_path)
        await case.prepare()
        await leave_unconfirmed(case, watch, tmp_path)
        assert watch.most == CONCURRENCY
        assert FIRST < len(set(case.ids())) <= FIRST + CONCURRENCY
    finally:
        case.stop()


async def leave_unconfirmed(case: Silent, watch: Watch, folder: Path) -> None:
    """Fall silent with a backlog at hand, and recover once the sink is closed."""
    try:
        async with outage._load(case, folder) as load:
            await load.accept(FIRST)
            await load.until(lambda pending: pending == 0)
            await case.silence()
            await load.accept(BACKLOG)
            await until(lambda: watch.now >= CONCURRENCY, what="all sends that there may be")
            await asyncio.sleep(WATCHED_S)
    finally:
        await case.recover()


@pytest.fixture(params=PARAMETERS)
async def destination(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with request.param() as harness:
        yield harness


async def test_abandoned_events_leave_nothing_in_memory(
    destination: Harness, clock: ManualClock, lead: Event
) -> None:
    sink = destination.build(clock, timeout="30s")
    await sink.send(lead)
    await destination.hang()
    tracemalloc.start()
    for number in range(ROUNDS):
        await give_up([large(lead, f"evt_{number}_{n}") for n in range(CONCURRENCY)], sink)
    await until(lambda: held() < CONCURRENCY * BODY_BYTES / 2, what="less in memory")
    tracemalloc.stop()
    await destination.recover()
    await sink.close()


def held() -> int:
    """Count the bytes that are in use, but for what a destination in this process has read."""
    gc.collect()
    read = tracemalloc.Filter(inclusive=False, filename_pattern="*/asyncio/streams.py")
    found = tracemalloc.take_snapshot().filter_traces([read])
    return sum(trace.size for trace in found.traces)


def large(event: Event, event_id: str) -> Event:
    return replace(event, id=event_id, body=event.body.ljust(BODY_BYTES))


async def give_up(events: list[Event], sink: Any) -> None:
    sending = [asyncio.create_task(sink.send(event)) for event in events]
    await asyncio.sleep(0.05)
    assert not [task for task in sending if task.done()]
    for task in sending:
        task.cancel()
    await asyncio.wait(sending)
