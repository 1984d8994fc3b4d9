"""A process of its own with librdkafka's mock cluster; told what to do by lines on stdin.

Run as a program: each line is a JSON list of a command and its arguments, each answer a JSON value.
"""

import base64
import ctypes
import json
import sys
from importlib.metadata import files
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

PARTITIONS = 4
PRODUCE = 0
INIT_PRODUCER_ID = 22


class Cluster:
    """Three brokers in this process, which lives as long as they do."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(_library())
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        conf = ctypes.c_void_p(self._lib.rd_kafka_conf_new())
        why = ctypes.create_string_buffer(512)
        handle = ctypes.c_void_p(self._lib.rd_kafka_new(0, conf, why, len(why)))
        self._mock = ctypes.c_void_p(self._lib.rd_kafka_mock_cluster_new(handle, 3))
        self._lib.rd_kafka_mock_start_request_tracking(self._mock)
        self.bootstraps = self._lib.rd_kafka_mock_cluster_bootstraps(self._mock).decode()
        self._read: list[dict[str, Any]] = []
        self._offsets: dict[tuple[str, int], int] = {}

    def create(self, topic: str) -> None:
        self._lib.rd_kafka_mock_topic_create(self._mock, topic.encode(), PARTITIONS, 3)
        self._offsets |= {(topic, number): 0 for number in range(PARTITIONS)}

    def down(self) -> None:
        for broker in (1, 2, 3):
            self.down_one(broker)

    def up(self) -> None:
        for broker in (1, 2, 3):
            self.up_one(broker)

    def down_one(self, broker: int) -> None:
        self._lib.rd_kafka_mock_broker_set_down(self._mock, broker)

    def up_one(self, broker: int) -> None:
        self._lib.rd_kafka_mock_broker_set_up(self._mock, broker)

    def delay(self, answers_ms: int) -> None:
        """Do at once what is asked, and answer so much later."""
        for broker in (1, 2, 3):
            self.delay_one(broker, answers_ms)

    def delay_one(self, broker: int, answers_ms: int) -> None:
        self._lib.rd_kafka_mock_broker_set_rtt(self._mock, broker, answers_ms)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Make a broker, 1 to 3, the partition's leader; -1 leaves it without one."""
        self._lib.rd_kafka_mock_partition_set_leader(
            self._mock, topic.encode(), ctypes.c_int32(partition), ctypes.c_int32(broker)
        )

    def push(self, api: int, count: int, code: int) -> None:
        """Answer the next requests of one kind with an error."""
        codes = (ctypes.c_int * count)(*([code] * count))
        self._lib.rd_kafka_mock_push_request_errors_array(
            self._mock, ctypes.c_int16(api), ctypes.c_size_t(count), codes
        )

    def clear(self, api: int) -> None:
        self._lib.rd_kafka_mock_clear_request_errors(self._mock, ctypes.c_int16(api))

    def topic_error(self, topic: str, code: int) -> None:
        """Answer what is asked about the topic with an error; 0 ends it."""
        self._lib.rd_kafka_mock_topic_set_error(self._mock, topic.encode(), code)

    def requests(self) -> list[int]:
        """List the kinds of all requests that there have been."""
        lib, count = self._lib, ctypes.c_size_t()
        lib.rd_kafka_mock_get_requests.restype = ctypes.POINTER(ctypes.c_void_p)
        lib.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
        found = lib.rd_kafka_mock_get_requests(self._mock, ctypes.byref(count))
        request = ctypes.c_void_p
        kinds = [lib.rd_kafka_mock_request_api_key(request(found[n])) for n in range(count.value)]
        lib.rd_kafka_mock_request_destroy_array(found, count)
        return kinds

    def read(self) -> list[dict[str, Any]]:
        """List the records of all topics from the first to the last."""
        options = {
            "bootstrap.servers": self.bootstraps,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        consumer = Consumer(options)
        places = [TopicPartition(*place, offset) for place, offset in self._offsets.items()]
        consumer.assign(places)
        open_places = set(self._offsets)
        while open_places:
            for record in _consume(consumer):
                place = (record.topic(), record.partition())
                if record.error() is None:
                    self._read.append(_as_json(record))
                    self._offsets[place] = record.offset() + 1
                elif record.error().code() == KafkaError._PARTITION_EOF:
                    open_places.discard(place)
        consumer.close()
        return self._read


def _consume(consumer: Consumer) -> list[Any]:
    return list(consumer.consume(1000, timeout=0.05))


def _as_json(record: Any) -> dict[str, Any]:
    return {
        "topic": record.topic(),
        "partition": record.partition(),
        "key": None if record.key() is None else record.key().decode(),
        "headers": {name: value.decode() for name, value in record.headers() or ()},
        "value": base64.b64encode(record.value()).decode(),
    }


def _library() -> str:
    """Find the library that the client has loaded already, so that there is only one."""
    for file in files("confluent-kafka") or ():
        if file.name.startswith("librdkafka"):
            return str(file.locate())
    return "librdkafka.so.1"


def main() -> None:
    cluster = Cluster()
    _say(cluster.bootstraps)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        _say(getattr(cluster, command)(*arguments))


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
