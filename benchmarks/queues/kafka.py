"""librdkafka's mock cluster and aiokafka."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition

from benchmarks.queue import Broker, Loop, Message, timed
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
        return {"send_and_wait": self._send_and_wait}

    async def _send_and_wait(self, messages: Sequence[Message], in_flight: int) -> float:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._cluster.brokers, acks="all", enable_idempotence=True
        )

        async def send(message: Message) -> None:
            shown = message.shown
            headers = [(name, value.encode()) for name, value in shown["headers"].items()]
            await producer.send_and_wait(
                shown["topic"], message.body, key=shown["key"].encode(), headers=headers
            )

        async with producer:
            return await timed(send, messages, workers=in_flight)

    def held(self) -> int:
        # By its offsets, for the mock brokers forget records after 5 MB.
        consumer = Consumer({"bootstrap.servers": self._cluster.brokers, "group.id": "count"})
        places = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        held = sum(consumer.get_watermark_offsets(place)[1] for place in places)
        consumer.close()
        return int(held)
