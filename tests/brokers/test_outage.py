"""Every broker is killed twice and frozen once under load, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import outage
from tests.brokers.kafka import TOPIC, KafkaCluster
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.brokers.moto_outage import SqsBehindDoor
from tests.brokers.nats import STREAM, NatsServer
from tests.brokers.pubsub_double import PROJECT, PubsubServer
from tests.brokers.pubsub_double import TOPIC as PUBSUB_TOPIC
from tests.brokers.rabbitmq import QUEUE, RabbitMq
from tests.brokers.redis import RedisServer


class Amqp(outage.Case):
    """The queue is of the kind that docs/sinks.md recommends."""

    sink_type = "amqp"

    def start(self, folder: Path) -> RabbitMq:
        self.server = RabbitMq(folder)
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        arguments = {"x-queue-type": "quorum", "x-overflow": "reject-publish"}
        await self.server.put_queue(**arguments)

    def table(self) -> dict[str, Any]:
        return {"url": self.server.url, "routing_key": QUEUE}

    def ids(self) -> list[str]:
        return [str(message.message_id) for message in self.server.read()]


class Kafka(outage.Case):
    """What is shown is an outage of the network: the mock brokers keep what they confirmed."""

    sink_type = "kafka"

    def __init__(self) -> None:
        self.cluster = KafkaCluster()

    def start(self, folder: Path) -> KafkaCluster:
        self.cluster.start()
        return self.cluster

    async def prepare(self) -> None:
        """The cluster makes its topic as it starts."""

    def table(self) -> dict[str, Any]:
        # A new producer needs most of a second before it writes.
        brokers = {"brokers": self.cluster.brokers, "timeout": "2500ms"}
        return {**brokers, "topic": TOPIC, "key": "{{ id }}"}

    def ids(self) -> list[str]:
        return [record.headers["relay-id"] for record in self.cluster.read()]

    def stop(self) -> None:
        self.cluster.stop()


class Mqtt(outage.Case):
    """A subscriber with a lasting session listens all the while: what it has heard is safe.

    A mosquitto that is killed forgets what it had confirmed for one that was away at that moment.
    """

    sink_type = "mqtt"

    def start(self, folder: Path) -> Mosquitto:
        self.server = Mosquitto(folder)
        self.server.outlive_kills()
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        """The subscriber has its session from the start."""

    def table(self) -> dict[str, Any]:
        login = {"username": "relay", "password": PASSWORD}
        return {"url": self.server.url, **login}

    def ids(self) -> list[str]:
        return [user_properties(message)["relay-id"] for message in self.server.read()]


class Nats(outage.Case):
    sink_type = "nats"

    def start(self, folder: Path) -> NatsServer:
        self.server = NatsServer(folder)
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        await self.server.put_stream()

    def table(self) -> dict[str, Any]:
        return {"servers": self.server.url, "stream": STREAM}

    def ids(self) -> list[str]:
        return [(message.headers or {})["relay-id"] for message in self.server.read()]


class Pubsub(outage.Case):
    """What is shown is our side: the double stands in for Google, with its record on disk."""

    sink_type = "pubsub"

    def start(self, folder: Path) -> PubsubServer:
        self.server = PubsubServer(folder)
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        """The double has its topic."""

    def table(self) -> dict[str, Any]:
        return {"project": PROJECT, "topic": PUBSUB_TOPIC, "emulator_host": self.server.address}

    def ids(self) -> list[str]:
        return [message["attributes"]["relay-id"] for message in self.server.read()]


class Redis(outage.Case):
    sink_type = "redis"

    def start(self, folder: Path) -> RedisServer:
        self.server = RedisServer(folder)
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        """XADD makes the stream."""

    def table(self) -> dict[str, Any]:
        return {"url": self.server.url}

    def ids(self) -> list[str]:
        return [fields[b"id"].decode() for fields in self.server.read()]


class Sqs(outage.Case):
    """What is shown is an outage of the network: moto's server keeps what it confirmed."""

    sink_type = "sqs"
    events = 1_000
    """Fewer, because moto counts its messages with each that comes."""

    def start(self, folder: Path) -> SqsBehindDoor:
        self.server = SqsBehindDoor(folder)
        self.server.start()
        return self.server

    async def prepare(self) -> None:
        """The queue is made as the server starts."""

    def table(self) -> dict[str, Any]:
        return {
            "queue_url": self.server.queue_url,
            "endpoint_url": self.server.endpoint_url,
            "region": "eu-west-1",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            # More would keep moto counting, and on a busy machine each answer would be late.
            "concurrency": 10,
            "timeout": "2500ms",
        }

    def ids(self) -> list[str]:
        attributes = [message["MessageAttributes"] for message in self.server.read()]
        return [each["relay-id"]["StringValue"] for each in attributes]


CASES = (Amqp, Kafka, Mqtt, Nats, Pubsub, Redis, Sqs)


@pytest.fixture(params=CASES, ids=lambda kind: kind.sink_type)
def case(request: pytest.FixtureRequest) -> Iterator[outage.Case]:
    case: outage.Case = request.param()
    yield case
    case.stop()


@pytest.mark.parametrize("kind", [Amqp, Mqtt, Nats, Redis], ids=lambda kind: kind.sink_type)
def test_a_missing_program_is_the_reported_reason(
    kind: type[outage.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    case = kind()
    with pytest.raises(pytest.skip.Exception, match="is not installed"):
        case.start(tmp_path)
    case.stop()


async def test_every_event_survives_three_outages(case: outage.Case, tmp_path: Path) -> None:
    outcome = await outage.run(case, tmp_path)
    print(f"{case.sink_type}: {outcome.duplicates} duplicates")  # noqa: T201
    assert outcome.missing == 0
    assert outcome.throttled == 3
