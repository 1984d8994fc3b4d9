"""The `kafka` sink: each event is one record that all in-sync replicas have confirmed.

brokers.md, section 7; Kafka drops only the producer's own resends, so consumers drop by relay-id.
"""

import asyncio
import re
import ssl
from typing import Any, Literal

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError

from relay import message, tls
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.event import Event
from relay.faults import Faults
from relay.kafka_producer import BATCH_BYTES, Producer, failure
from relay.settings import Secret
from relay.sink import SinkSettings

_SHARE = 0.8
"""Of the sink's timeout, so that the reason is ours rather than that time was up."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NOT_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]{1,5})?")


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type kafka."""

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


class KafkaSink:
    """Produces with one producer, made when it is needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        brokers: list[tuple[str, int]],
        topic: message.Target,
        key: message.Target | None,
        security: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._topic = topic
        self._key = key
        self._security = security
        self._connecting = asyncio.Lock()
        self._producer: Producer | None = None
        self._former: set[Producer] = set()

    async def send(self, event: Event) -> Answer:
        topic = self._topic.resolve(event)
        if _TOPIC.fullmatch(topic) is None:
            raise Refused("the topic of this event is empty or longer than 249 characters")
        headers = [(name, value.encode()) for name, value in self._headers(event).items()]
        record = {"key": self._key_of(event), "value": event.body, "headers": headers}
        try:
            return await self._deliver(topic, record, alone=False)
        except Refused:
            if len(event.body) > BATCH_BYTES:
                raise
        # Others may have been in its batch, and only one of them too large.
        return await self._deliver(topic, record, alone=True)

    async def check(self) -> None:
        producer = await self._connected()
        try:
            async with asyncio.timeout(self._settings.timeout.seconds * _SHARE):
                for topic in self._topic.samples(self._settings):
                    await producer.find(topic)
        except TimeoutError:
            raise Temporary("the brokers do not answer in time") from None

    def render(self, event: Event) -> dict[str, Any]:
        key = self._key_of(event)
        return {
            "topic": self._topic.render(event),
            "key": None if key is None else key.decode(),
            "headers": self._headers(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        if self._producer is not None:
            self._former.add(self._producer)
            self._producer = None
        for producer in tuple(self._former):
            await producer.stop()
            self._former.discard(producer)

    async def _deliver(self, topic: str, record: dict[str, Any], *, alone: bool) -> Answer:
        producer = await self._connected()
        limit_s = self._settings.timeout.seconds * _SHARE
        place = await producer.deliver(topic, within_s=limit_s, alone=alone, **record)
        return Answer(excerpt=f"{topic}, partition {place.partition}, offset {place.offset}")

    async def _connected(self) -> Producer:
        async with self._connecting:
            if self._producer is None or not self._producer.usable:
                if self._producer is not None:
                    self._former.add(self._producer)  # it may still have some to confirm
                    self._producer = None
                self._former = {each for each in self._former if not each.ended}
                self._producer = await self._connect()
            return self._producer

    async def _connect(self) -> Producer:
        failures: list[SinkError] = []
        limit_s = self._settings.timeout.seconds * _SHARE / len(self._brokers)
        for host, port in self._brokers:
            try:
                async with asyncio.timeout(limit_s):
                    return await self._start(host, port)
            except (OSError, KafkaError) as error:
                failures.append(failure(error))
        # One that someone has to mend says more than others that are away.
        raise next((each for each in failures if isinstance(each, Misconfigured)), failures[0])

    async def _start(self, host: str, port: int) -> Producer:
        """Connect by hand first, because the library keeps the cause of a failure to itself."""
        limit_ms = int(self._settings.timeout * _SHARE)
        options = self._security | {"request_timeout_ms": limit_ms, "client_id": "relay"}
        connection = await create_conn(host, port, **options)
        await connection.close()
        producer = Producer(bootstrap_servers=f"{host}:{port}", **options)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _key_of(self, event: Event) -> bytes | None:
        key = event.video_id() if self._key is None else self._key.resolve(event)
        return key.encode() if key else None

    def _headers(self, event: Event) -> dict[str, str]:
        headers = message.headers(event, self._settings.format, prefix="ce_")
        if self._settings.format == "cloudevents":
            headers["content-type"] = "application/json"
        return headers


def build(settings: Settings, clock: Clock) -> KafkaSink:  # noqa: ARG001
    faults, key = Faults(), None
    with faults.noted():
        topic = message.Target(settings.topic, key="topic", escape=_topic_part)
        if not all(_TOPIC.fullmatch(sample) for sample in topic.samples(settings)):
            raise ValueError("topic: expected 1 to 249 letters, digits, dots, _ and -")
    with faults.noted():
        key = message.optional(settings.key, settings, key="key")
    with faults.noted():
        brokers = _brokers(settings)
    with faults.noted():
        security = _security(settings)
    faults.tell()
    return KafkaSink(settings, brokers=brokers, topic=topic, key=key, security=security)


def _topic_part(value: str) -> str:
    return _NOT_IN_TOPIC.sub("_", value)


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
