"""The `kafka` sink: each event is one record that all in-sync replicas have confirmed.

brokers.md, section 7; Kafka drops only the producer's own resends, so consumers drop by relay-id.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes
from relay.outbound import message, tls
from relay.outbound.batching import BatchOnlySink, prepare
from relay.sinks.kafka.batch import KafkaRecord
from relay.sinks.kafka.cluster import KafkaProducer

_SHARE = 0.8
"""Share of the sink's timeout, so that a failure still has its reason."""

_NOT_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")

_TOPIC = message.Naming(
    re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]+").fullmatch,
    "letters, digits, dots, _ and -, and neither . nor ..",
    249,
    escape=lambda value: _NOT_IN_TOPIC.sub("_", value),
    reserved=(message.Reserved("__", "Kafka's own topics"),),
)
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]{1,5})?")


class Settings(BatchSettings, tls.TlsSettings, frozen=True, kw_only=True):
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
    concurrency: int = 64

    def batch(self) -> int:
        # All of them, because a request costs more than its records.
        return self.concurrency


class KafkaSink(BatchOnlySink):
    """Writes each event as one record; the client makes batches, one for each partition."""

    def __init__(
        self,
        settings: Settings,
        *,
        topic: message.DestinationTemplate,
        key: message.MessageTarget | None,
        options: dict[str, str],
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._key = key
        self._cluster = KafkaProducer(options, limit_s=settings.timeout.seconds * _SHARE)

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        records, failures = await prepare(self._record, events)
        outcomes = failures | await self._cluster.deliver(records)
        return [outcomes[number] for number in range(len(events))]

    async def check(self) -> None:
        await self._cluster.check(self._topic.samples(self._settings))

    def render(self, event: Event) -> dict[str, Any]:
        key = self._key_of(event)
        return {
            "topic": self._topic.render(event),
            "key": None if key is None else key.decode(),
            "headers": self._headers(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        await self._cluster.close()

    def _record(self, event: Event) -> KafkaRecord:
        headers = list[tuple[str, str | bytes | None]](self._headers(event).items())
        return KafkaRecord(self._topic.resolve(event), self._key_of(event), event.body, headers)

    def _key_of(self, event: Event) -> bytes | None:
        key = event.video_id() if self._key is None else self._key.resolve(event)
        return key.encode() if key else None

    def _headers(self, event: Event) -> dict[str, str]:
        headers = message.headers(event, self._settings.format, prefix="ce_")
        if self._settings.format == "cloudevents":
            headers["content-type"] = "application/json"
        return headers


def build(settings: Settings, clock: Clock) -> KafkaSink:  # noqa: ARG001
    faults, options, key = Faults(), dict[str, str](), None
    with faults.collect():
        topic = message.DestinationTemplate(settings.topic, key="topic", naming=_TOPIC)
        topic.samples(settings)
    with faults.collect():
        key = message.optional(settings.key, settings, key="key")
    with faults.collect():
        options["bootstrap.servers"] = _brokers(settings)
    with faults.collect():
        options |= _tls(settings)
    with faults.collect():
        options |= _login(settings)
    faults.raise_all()
    return KafkaSink(settings, topic=topic, key=key, options=options)


def _brokers(settings: Settings) -> str:
    brokers = settings.brokers
    texts = [text.strip() for text in (brokers.split(",") if isinstance(brokers, str) else brokers)]
    matches = [_BROKER.fullmatch(text) for text in texts]
    ports = [int((match[2] or ":9092")[1:]) for match in matches if match]
    if not ports or len(ports) < len(texts) or not all(0 < port < 65536 for port in ports):
        raise ValueError("brokers: expected host:port, more of them as a list or with commas")
    return ",".join(texts)


def _login(settings: Settings) -> dict[str, str]:
    protocol = settings.security_protocol
    if not protocol.startswith("SASL_"):
        if settings.username or settings.password:
            raise ValueError("security_protocol: expected a SASL_ one, because a user is given")
        return {}
    if not settings.username or settings.password is None:
        raise ValueError(f"username, password: {protocol} needs both")
    return {
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.username,
        "sasl.password": settings.password.reveal(),
    }


def _tls(settings: Settings) -> dict[str, str]:
    options = {"security.protocol": str(settings.security_protocol)}
    if not settings.security_protocol.endswith("SSL"):
        if tls.is_asked_for(settings):
            raise ValueError("security_protocol: expected SSL or SASL_SSL, as TLS files are given")
        return options
    tls.context(settings)  # names the file at fault
    options["ssl.ca.location"] = settings.ca_file or tls.default_cas()
    if settings.client_cert_file:
        options["ssl.certificate.location"] = settings.client_cert_file
        options["ssl.key.location"] = settings.client_key_file or settings.client_cert_file
    return options
