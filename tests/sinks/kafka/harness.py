"""The `kafka` sink's destination: a cluster of mock brokers, made to answer as real ones do."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.sinks.kafka.sink import KafkaSink, build
from tests.brokers.kafka import TOPIC, KafkaCluster
from tests.brokers.kafka_mock import PRODUCE
from tests.conftest import ManualClock
from tests.sinks.conformance import Harness, Message, Variety, by_source, watched_in

PRODUCE_CODES: Mapping[str, int] = {
    "fewer replicas than the topic demands": 19,
    "the replicas do not confirm in time": 20,
    "the broker's disk is full": 56,
    "larger than the topic takes": 10,
    "the broker finds the record invalid": 87,
    "the user may not write to the topic": 29,
    "the number of the batch is not expected": 45,
}
"""Of Kafka's protocol, section Error Codes."""


class KafkaHarness(Harness):
    sink_type = "kafka"
    failures: ClassVar = {
        "nobody listens": Temporary,
        "fewer replicas than the topic demands": Temporary,
        "the replicas do not confirm in time": Temporary,
        "the number of the batch is not expected": Temporary,
        "the broker's disk is full": Temporary,
        "larger than the topic takes": Refused,
        "the broker finds the record invalid": Refused,
        "the user may not write to the topic": Misconfigured,
    }
    reasons: ClassVar = {
        "fewer replicas than the topic demands": "fewer replicas are in sync than the topic",
        "the replicas do not confirm in time": "too few replicas confirmed in time",
        "the broker's disk is full": "the broker cannot write to its disk",
        "larger than the topic takes": "larger than the topic takes",
        "the user may not write to the topic": "the user may not write to the topic relay",
    }
    bare: ClassVar = {"brokers": "127.0.0.1:9092"}
    faults: ClassVar = (
        ({"brokers": "kafka://host"}, "brokers: expected"),
        ({"brokers": []}, "brokers: expected"),
        ({"brokers": "host:0"}, "brokers: expected"),
        ({"topic": "a b"}, "topic: does not fit: expected"),
        ({"topic": "{{ nothing }}"}, "topic: line 1: no such name"),
        ({"key": "{{ data.nothing }}"}, "key: .*missing"),
        ({"username": "relay", "password": "marked"}, "security_protocol: expected a SASL_"),
        ({"security_protocol": "SASL_SSL", "username": "relay"}, "username, password: "),
        ({"ca_file": "x.pem"}, "security_protocol: expected SSL"),
        ({"security_protocol": "SSL", "ca_file": "missing.pem"}, "ca_file: cannot be read"),
        ({"security_protocol": "SSL", "client_key_file": "x"}, "client_key_file: needs"),
    )
    wrong: ClassVar = {"security_protocol": "TLS", "sasl_mechanism": "NONE"}
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "Kafka does not ask for a pace",
        "a_loss_ends_what_waits": "the mock's brokers cannot be frozen and away at once",
        "an_event_that_is_too_large_spares_the_others": "the mock's brokers take any size",
        "batches_share_one_connection": "the mock's brokers do not tell its clients apart",
    }

    def __init__(self) -> None:
        self._was_frozen = False

    async def __aenter__(self) -> Self:
        self.cluster = KafkaCluster()
        self.cluster.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cluster.stop()

    def table(self) -> dict[str, Any]:
        return {"brokers": self.cluster.brokers, "topic": TOPIC, "timeout": "2500ms"}

    def messages(self) -> list[Message]:
        return [
            Message(each.headers["relay-id"], each.value, watched_in(each.headers))
            for each in self.cluster.read()
        ]

    async def fail(self, how: str) -> None:
        if how == self.down:
            self.cluster.kill()
        else:
            self.cluster.tell("push", PRODUCE, 100, PRODUCE_CODES[how])

    async def vary(self, event: Event) -> Variety:
        self.cluster.tell("topic_error", "bad", 3)
        return by_source(event, "topic", good=TOPIC, bad="bad", unfit="")

    async def hang(self) -> None:
        self.cluster.freeze()
        self._was_frozen = True

    async def recover(self) -> None:
        self.cluster.thaw()
        self.cluster.restart()
        self.cluster.tell("clear", PRODUCE)
        if self._was_frozen:
            self.cluster.read()  # once it has answered what was asked of it meanwhile
            self._was_frozen = False

    def connections(self) -> int:
        return self.cluster.connections()

    def contacts(self) -> int:
        """Count a client with its several connections as one."""
        return min(1, len(self.cluster.tell("requests")))


class Sinks:
    """Makes sinks and closes them."""

    def __init__(self, harness: KafkaHarness, clock: ManualClock) -> None:
        self._harness = harness
        self._clock = clock
        self.made: list[KafkaSink] = []

    def __call__(self, **changed: object) -> KafkaSink:
        sink = build(self._harness.settings(**changed), self._clock)  # type: ignore[arg-type]
        self.made.append(sink)
        return sink
