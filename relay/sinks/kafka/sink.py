"""The `kafka` sink: each event is one record that all in-sync replicas have confirmed.

brokers.md, section 7; Kafka drops only the producer's own resends, so consumers drop by relay-id.
"""

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal

from aiokafka import TopicPartition

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import SinkError
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes
from relay.outbound import message, tls
from relay.outbound.batching import BatchOnlySink
from relay.sinks.kafka.cluster import Connection
from relay.sinks.kafka.producer import Record

_SHARE = 0.8
"""Of the sink's timeout, so that the reason is ours rather than that time was up."""

_NOT_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")

_TOPIC = message.Naming(
    re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]+").fullmatch,
    "letters, digits, dots, _ and -, and neither . nor ..",
    249,
    escape=lambda value: _NOT_IN_TOPIC.sub("_", value),
    reserved=(message.Reserved("__", "Kafka's own topics"),),
)
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]{1,5})?")

Found = dict[int, SinkResponse | Exception]
"""What became of each event, by its place in the batch."""


class Settings(BatchSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type kafka."""

    destination: ClassVar[str | None] = "topic"
    brokers: str | tuple[str, ...]
    """`host:port`, as a list or with commas; one that answers is enough."""
    topic: str = "relay"
    key: str | None = None
    """Without one the video's id, which keeps a video's events in order."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str | None = None
    password: Secret | None = None
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 64

    def batch(self) -> int:
        # All of them: what makes a request costs more than what is in it.
        return self.concurrency


class KafkaSink(BatchOnlySink):
    """Produces with one producer: a batch of records for each partition."""

    def __init__(
        self,
        settings: Settings,
        *,
        brokers: list[tuple[str, int]],
        topic: message.DestinationTemplate,
        key: message.Target | None,
        security: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._key = key
        self._limit_s = settings.timeout.seconds * _SHARE
        self._connection = Connection(brokers, security, limit_s=self._limit_s)

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        found: Found = {}
        topics: defaultdict[str, dict[int, Record]] = defaultdict(dict)
        for number, event in enumerate(events):
            try:
                topics[self._topic.resolve(event)][number] = self._record(event)
            except Exception as error:  # noqa: BLE001  a bug, too, is this event's alone
                found[number] = error
        until_s = self._until_s()
        await _side_by_side(
            [self._send_to(topic, records, until_s, found) for topic, records in topics.items()]
        )
        return [found[number] for number in range(len(events))]

    async def check(self) -> None:
        until_s = self._until_s()
        producer = await self._connection.producer(until_s=until_s)
        for topic in self._topic.samples(self._settings):
            await producer.find(topic, until_s=until_s)

    def render(self, event: Event) -> dict[str, Any]:
        key = self._key_of(event)
        return {
            "topic": self._topic.render(event),
            "key": None if key is None else key.decode(),
            "headers": self._headers(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        await self._connection.close()

    def _until_s(self) -> float:
        return asyncio.get_running_loop().time() + self._limit_s

    async def _send_to(
        self, topic: str, records: Mapping[int, Record], until_s: float, found: Found
    ) -> None:
        """Send all that goes to one topic, whose failure is not that of others."""
        try:
            producer = await self._connection.producer(until_s=until_s)
            await producer.find(topic, until_s=until_s)
        except SinkError as error:
            found.update(dict.fromkeys(records, error))
            return
        partitions = producer.spread(topic, [record.key for record in records.values()])
        parts: defaultdict[TopicPartition, dict[int, Record]] = defaultdict(dict)
        for (number, record), partition in zip(records.items(), partitions, strict=True):
            parts[TopicPartition(topic, partition)][number] = record
        await _side_by_side(
            [self._send_part(place, part, until_s, found) for place, part in parts.items()]
        )

    async def _send_part(
        self, place: TopicPartition, records: Mapping[int, Record], until_s: float, found: Found
    ) -> None:
        outcomes = await self._connection.deliver(place, list(records.values()), until_s=until_s)
        found.update(zip(records, outcomes, strict=True))

    def _record(self, event: Event) -> Record:
        headers = [(name, value.encode()) for name, value in self._headers(event).items()]
        return Record(self._key_of(event), event.body, headers)

    def _key_of(self, event: Event) -> bytes | None:
        key = event.video_id() if self._key is None else self._key.resolve(event)
        return key.encode() if key else None

    def _headers(self, event: Event) -> dict[str, str]:
        headers = message.headers(event, self._settings.format, prefix="ce_")
        if self._settings.format == "cloudevents":
            headers["content-type"] = "application/json"
        return headers


async def _side_by_side(ways: Sequence[Coroutine[Any, Any, None]]) -> None:
    if len(ways) == 1:
        await ways[0]
        return
    async with asyncio.TaskGroup() as group:
        for way in ways:
            group.create_task(way)


def build(settings: Settings, clock: Clock) -> KafkaSink:  # noqa: ARG001
    faults, key = Faults(), None
    with faults.noted():
        topic = message.DestinationTemplate(settings.topic, key="topic", naming=_TOPIC)
        topic.samples(settings)
    with faults.noted():
        key = message.optional(settings.key, settings, key="key")
    with faults.noted():
        brokers = _brokers(settings)
    with faults.noted():
        security = _security(settings)
    faults.tell()
    return KafkaSink(settings, brokers=brokers, topic=topic, key=key, security=security)


def _brokers(settings: Settings) -> list[tuple[str, int]]:
    given = settings.brokers
    texts = [each.strip() for each in (given.split(",") if isinstance(given, str) else given)]
    matches = [_BROKER.fullmatch(text) for text in texts]
    found = [(each[1], int((each[2] or ":9092")[1:])) for each in matches if each]
    if not found or len(found) < len(texts) or not all(0 < port < 65536 for _, port in found):
        raise ValueError("brokers: expected host:port, more of them as a list or with commas")
    return [(host.strip("[]"), port) for host, port in found]


def _security(settings: Settings) -> dict[str, Any]:
    faults, context, login = Faults(), None, dict[str, str]()
    with faults.noted():
        context = _tls(settings)
    with faults.noted():
        login = _login(settings)
    faults.tell()
    return {"security_protocol": settings.security_protocol, "ssl_context": context, **login}


def _login(settings: Settings) -> dict[str, str]:
    protocol = settings.security_protocol
    if not protocol.startswith("SASL_"):
        if settings.username or settings.password:
            raise ValueError("security_protocol: expected a SASL_ one, because a user is given")
        return {}
    if not settings.username or settings.password is None:
        raise ValueError(f"username, password: {protocol} needs both")
    return {
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.username,
        "sasl_plain_password": settings.password.reveal(),
    }


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.security_protocol.endswith("SSL"):
        return tls.context(settings)
    if tls.is_asked_for(settings):
        raise ValueError("security_protocol: expected SSL or SASL_SSL, as TLS files are given")
    return None
