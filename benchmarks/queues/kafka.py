"""librdkafka's mock cluster and its producer."""

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.queue import Broker, Loop, Message, batches
from tests.brokers.kafka import KafkaCluster
from tests.brokers.kafka_mock import PARTITIONS


class Kafka(Broker):
    """librdkafka's mock cluster: it keeps everything in memory and does not replicate."""

    name = "kafka"

    def __init__(self) -> None:
        self._cluster = KafkaCluster()
        self._numbers = count()
        self._topic = ""

    def start(self, folder: Path) -> None:
        del folder
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def empty(self) -> None:
        self._topic = f"relay{next(self._numbers)}"
        self._cluster.tell("create", self._topic)

    def table(self) -> dict[str, Any]:
        return {"brokers": self._cluster.brokers, "topic": self._topic}

    def loops(self) -> dict[str, Loop]:
        return {"produce and poll": self._poll, "produce and flush": self._flush}

    async def _poll(self, messages: Sequence[Message], in_flight: int) -> float:
        producer = self._connected()
        begun_s = time.perf_counter()
        for message in messages:
            while len(producer) >= in_flight:
                producer.poll(1)
            _produce(producer, message)
        producer.flush()
        return time.perf_counter() - begun_s

    async def _flush(self, messages: Sequence[Message], in_flight: int) -> float:
        producer = self._connected()
        begun_s = time.perf_counter()
        for batch in batches(messages, in_flight):
            for message in batch:
                _produce(producer, message)
            producer.flush()
        return time.perf_counter() - begun_s

    def _connected(self) -> Producer:
        """Make a producer that has its id, for which a broker takes half a second."""
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.brokers,
                "enable.idempotence": True,
                "linger.ms": 0,
            }
        )
        warm = f"warm{self._topic}"
        self._cluster.tell("create", warm)
        producer.produce(warm, b"")
        producer.flush()
        return producer

    def held(self) -> int:
        # By its offsets, for the mock brokers forget records after 5 MB.
        consumer = Consumer({"bootstrap.servers": self._cluster.brokers, "group.id": "count"})
        places = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        held = sum(consumer.get_watermark_offsets(place)[1] for place in places)
        consumer.close()
        return int(held)


def _produce(producer: Producer, message: Message) -> None:
    shown = message.shown
    headers = [(name, value.encode()) for name, value in shown["headers"].items()]
    producer.produce(shown["topic"], message.body, shown["key"].encode(), headers=headers)
