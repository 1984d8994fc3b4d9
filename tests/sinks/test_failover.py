"""A server that no longer serves lives on, and new connections lead to its successor."""

import signal
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from relay.sinks.redis.sink import RedisSink
from tests.brokers.door import Door
from tests.brokers.nats import NatsServer
from tests.brokers.redis import RedisServer
from tests.conftest import ManualClock
from tests.ports import free_port
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.batch import DELIVERED, series, told
from tests.sinks.conformance import Connected, Harness
from tests.sinks.harnesses import HttpHarness, SlackHarness, marks
from tests.sinks.mqtt.harness import MqttHarness
from tests.sinks.nats import conftest as nats
from tests.sinks.nats.harness import NatsHarness
from tests.sinks.pubsub.harness import PubsubHarness
from tests.sinks.redis import conftest as redis
from tests.sinks.redis.harness import FAILURES, RedisHarness
from tests.sinks.sqs.harness import SqsHarness
from tests.stub_server import until


@dataclass
class Pair:
    """Two Redis servers behind one name; new connections go where the door leads."""

    old: RedisServer
    new: RedisServer
    door: Door

    def build(self, **table: str) -> RedisSink:
        url = self.old.url.replace(f":{self.old.port}", f":{self.door.port}")
        return redis.build(url=url, **table)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    servers = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        servers.append(RedisServer(tmp_path / name, more="masterauth admin"))
        servers[-1].start()
    door = Door(servers[0].port)
    await door.listen()
    yield Pair(servers[0], servers[1], door)
    await door.shut()
    for server in servers:
        server.stop()


def ids(server: RedisServer) -> list[str]:
    return [fields[b"id"].decode() for fields in server.read()]


@pytest.mark.servers
async def test_redis_every_event_reaches_the_new_master_and_none_is_confirmed_by_the_old(
    pair: Pair, lead: Event
) -> None:
    replicate(pair.new, pair.old)
    sink = pair.build()
    events = series(lead, 9)
    assert told(await sink.send_batch(events[:3])) == [DELIVERED] * 3
    await until(lambda: len(ids(pair.new)) == 3, what="the replica's copy")
    with closing(pair.new.admin()) as admin:
        admin.replicaof("NO", "ONE")
    replicate(pair.old, pair.new)
    pair.door.leads_to = pair.new.port
    read_only = (Temporary, "READONLY: the server is a read-only replica")
    assert told(await sink.send_batch(events[3:6])) == [read_only] * 3
    assert told(await sink.send_batch(events[3:])) == [DELIVERED] * 6
    assert ids(pair.new) == [event.id for event in events]
    assert (pair.door.accepted, pair.door.open) == (2, 1)
    await sink.close()


def replicate(replica: RedisServer, master: RedisServer) -> None:
    with closing(replica.admin()) as admin:
        admin.replicaof("127.0.0.1", str(master.port))


@pytest.mark.servers
@pytest.mark.parametrize(
    ("how", "sends"),
    [
        ("it is a replica", 1),
        ("it has too few replicas", 1),
        ("the memory is full", 1),
        ("the key holds something else", 2),
    ],
)
async def test_redis_a_connection_that_answers_with_errors_is_replaced(
    pair: Pair, lead: Event, how: str, sends: int
) -> None:
    sink = pair.build()
    await sink.send(lead)
    FAILURES[how](pair.old)
    pair.door.leads_to = pair.new.port
    for _ in range(sends):
        with pytest.raises(SinkError):
            await sink.send(lead)
    await sink.send(lead)
    assert ids(pair.new) == [lead.id]
    await sink.close()


@pytest.mark.servers
async def test_redis_a_check_asks_the_server_that_a_new_connection_leads_to(
    pair: Pair, lead: Event
) -> None:
    sink = pair.build()
    await sink.send(lead)
    FAILURES["it is a replica"](pair.new)
    pair.door.leads_to = pair.new.port
    with pytest.raises(Temporary, match="READONLY: the server is a read-only replica"):
        await sink.check()
    await sink.send(lead)
    assert (pair.door.accepted, pair.door.open) == (2, 1)
    await sink.close()


@pytest.fixture
async def two_servers(tmp_path: Path) -> AsyncIterator[tuple[NatsServer, NatsServer]]:
    servers = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        servers.append(NatsServer(tmp_path / name))
        servers[-1].start()
        await servers[-1].put_stream()
    yield servers[0], servers[1]
    for server in servers:
        server.stop()


async def enter_lame_duck_mode(server: NatsServer, sink: NatsSink) -> None:
    """Do what `nats-server --signal ldm` does, and wait until the sink has heard of it."""
    connection = sink._publisher
    assert connection is not None
    server.signal(signal.SIGUSR2)
    await until(lambda: connection.is_leaving, what="the server's INFO")


@pytest.mark.servers
async def test_nats_a_server_in_lame_duck_mode_is_left_for_another_without_a_failure(
    two_servers: tuple[NatsServer, NatsServer], lead: Event
) -> None:
    old, new = two_servers
    sink = nats.build(servers=f"{old.url},{new.url}")
    events = series(lead, 6)
    assert told(await sink.send_batch(events[:3])) == [DELIVERED] * 3
    await enter_lame_duck_mode(old, sink)
    assert told(await sink.send_batch(events[3:])) == [DELIVERED] * 3
    assert [(each.headers or {})["relay-id"] for each in new.read()] == ["evt_3", "evt_4", "evt_5"]
    await until(lambda: old.connections() == 0, what="the end of the old connection")
    await sink.close()


@pytest.mark.servers
async def test_nats_a_server_in_lame_duck_mode_serves_while_there_is_no_other(
    two_servers: tuple[NatsServer, NatsServer], lead: Event
) -> None:
    old, _ = two_servers
    sink = nats.build(servers=f"{old.url},nats://127.0.0.1:{free_port()}")
    await sink.send(lead)
    await enter_lame_duck_mode(old, sink)
    assert told(await sink.send_batch(series(lead, 3))) == [DELIVERED] * 3
    assert old.connections() == 1
    await sink.close()


CASES: list[tuple[type[Harness], str, type[SinkError]]] = [
    (AmqpHarness, "no queue takes the routing key", Misconfigured),
    (HttpHarness, "503", Temporary),
    (HttpHarness, "404", Misconfigured),
    (MqttHarness, "nobody subscribes", Misconfigured),
    (NatsHarness, "no stream takes the subject", Misconfigured),
    (PubsubHarness, "UNAVAILABLE", Temporary),
    (RedisHarness, "it is a replica", Temporary),
    (SlackHarness, "503", Temporary),
    (SqsHarness, "the access key is unknown", Misconfigured),
]


@pytest.mark.parametrize(
    ("kind", "how", "error"),
    [
        pytest.param(*case, id=f"{case[0].sink_type}-{case[1]}", marks=marks(case[0]))
        for case in CASES
    ],
)
async def test_after_two_sends_that_only_failed_the_next_one_takes_another_connection(
    kind: type[Harness], how: str, error: type[SinkError], lead: Event
) -> None:
    async with kind() as destination:
        assert isinstance(destination, Connected)
        sink = destination.build(ManualClock())
        await sink.send(lead)
        await destination.fail(how)
        with pytest.raises(error):
            await sink.send(lead)
        before = destination.contacts()
        for _ in range(2):
            with pytest.raises(error):
                await sink.send(lead)
        assert destination.contacts() > before
        await destination.recover()
        await sink.send(lead)
        await until(lambda: destination.connections() <= 1, what="the end of the replaced ones")
        await sink.close()
