"""A real Apache Kafka: one node that is broker and controller, with its records in a folder.

Maven fetches the server once per machine, into a cache folder beside those of other tools.
"""

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented there
    AdminClient,
    NewTopic,
)

from tests.brokers.kafka import Record
from tests.brokers.program import Program
from tests.ports import free_port

PARTITIONS = 3

_POM = Path(__file__).with_name("kafka-server.xml")
_FETCHED_S = 600

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
auto.create.topics.enable=false
log.cleaner.enable=false
num.network.threads=1
num.io.threads=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
"""


class ApacheKafka(Program):
    """`brokers` is the value of a sink's setting of that name."""

    name = "java"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._jars = _fetch()
        self.brokers = f"127.0.0.1:{self.port}"
        self._properties = folder / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(port=self.port, controller=free_port(), folder=folder)
        )
        cluster = "AAAAAAAAAAAAAAAAAAAAAA"
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)]
        subprocess.run([*self._java(), *tool], check=True, capture_output=True)

    def command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", str(self._properties)]

    def create(self, topic: str, **config: str) -> None:
        """Return once producers can write to the topic."""
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)

    def read(self, topic: str) -> list[Record]:
        """List all records of a topic, those of one partition in their order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": "reader",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        records, ends = [], 0
        while ends < PARTITIONS:
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends += 1
        consumer.close()
        return records

    def _java(self) -> list[str]:
        small = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return [self.name, *small, "-cp", f"{self._jars}/*"]


def _record(message: Any) -> Record:
    topic, partition, key = message.topic(), message.partition(), message.key()
    headers = {name: value.decode() for name, value in message.headers() or ()}
    return Record(topic, partition, None if key is None else key.decode(), headers, message.value())


def _fetch() -> Path:
    """Return the folder with the server's jars."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "relay-tests" / f"kafka-{sha256(_POM.read_bytes()).hexdigest()[:12]}"
    if jars.exists():
        return jars
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed")
    partial = jars.with_name(f"{jars.name}.{os.getpid()}")
    options = (
        "-q",
        "-B",
        "-f",
        str(_POM),
        "-DincludeScope=runtime",
        f"-DoutputDirectory={partial}",
    )
    done = subprocess.run(
        ["mvn", *options, "dependency:copy-dependencies"],
        check=False,
        capture_output=True,
        text=True,
        timeout=_FETCHED_S,
    )
    if done.returncode:
        pytest.skip(f"Maven cannot fetch Kafka's server: {done.stdout[-300:]}")
    if jars.exists():
        shutil.rmtree(partial)
    else:
        partial.rename(jars)
    return jars
