"""The `mqtt` sink: each event is one QoS 1 message that the broker has acknowledged.

brokers.md, section 10; MQTT drops no duplicates, so consumers do, by the user property relay-id.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes
from relay.outbound import message, tls
from relay.outbound.batching import BatchOnlySink, is_cancelled
from relay.sinks.mqtt.connection import Broker, Connection, connect
from relay.sinks.mqtt.errors import NO_SUBSCRIBER
from relay.sinks.mqtt.publisher import Publication, Publisher

STRING_MAX_BYTES = 65_535
"""MQTT 5.0, section 1.5.4: of topics, names and values."""

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_TRIES = 5

_CHECK_SHARE = 0.9
"""Part of `timeout` for a check, so that the sink's reason comes before the caller's timeout."""

_CONTENT_TYPE = "application/json"
_LATE = "the broker did not answer in time"

_NO_LEVEL = re.compile(r"[+#/]")


def _level(value: str) -> str:
    """Make one level of a topic, or a part of one."""
    return "".join(c if c.isprintable() else "_" for c in _NO_LEVEL.sub("_", value))


_TOPIC = message.Naming(
    lambda topic: bool(topic) and topic.isprintable() and not {"+", "#"} & set(topic),
    "levels with / between, without + and #",
    STRING_MAX_BYTES,
    escape=_level,
    reserved=(
        message.Reserved("$SYS/", "the broker's own messages"),
        message.Reserved("$share/", "shared subscriptions"),
        message.Reserved("$queue/", "shared subscriptions"),
        message.Reserved("$", "what brokers do by themselves", until="/"),
    ),
)
"""Other topics under `$` may be written out: brokers take messages there, such as `$aws/rules/`."""


class Settings(BatchSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type mqtt."""

    destination: ClassVar[str | None] = "topic"
    url: Secret
    """`mqtt://host:port`, or `mqtts://` for TLS."""
    username: Secret | None = None
    password: Secret | None = None
    client_id: str = ""
    """Empty for one that the broker assigns; two clients with the same id disconnect each other."""
    topic: str = "relay/{{ event }}"
    unheard: Literal["park", "accept"] = "park"
    """Outcome where the broker drops a message because nobody subscribes to its topic."""
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 32


class MqttSink(BatchOnlySink):
    """Publishes over one connection, opened on demand."""

    def __init__(
        self, settings: Settings, *, broker: Broker, topic: message.DestinationTemplate
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._topic = topic
        self._connecting = asyncio.Lock()
        self._open: tuple[Connection, Publisher] | None = None

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        prepared = [self._publication(event) for event in events]
        failure = await self._publish([item for item in prepared if isinstance(item, Publication)])
        return [
            self._outcome(item, event, failure) if isinstance(item, Publication) else item
            for item, event in zip(prepared, events, strict=True)
        ]

    async def check(self) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout.seconds * _CHECK_SHARE):
                connection, _ = await self._connected()
                await connection.ping()
        except TimeoutError:
            self._abort()
            raise Temporary(_LATE) from None

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "topic": self._topic.render(event),
            "content_type": _CONTENT_TYPE,
            "user_properties": self._user_properties(event),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        connected, self._open = self._open, None
        if connected is not None:
            connected[0].close()

    def _abort(self) -> None:
        if self._open is not None:
            self._open[0].abort()

    def _publication(self, event: Event) -> Publication | Exception:
        try:
            topic, pairs = self._topic.resolve(event), self._user_properties(event)
            for name, value in pairs.items():
                if len(value.encode()) > STRING_MAX_BYTES:
                    return Refused(f"the property {name} is longer than {STRING_MAX_BYTES} bytes")
            properties = Properties(PacketTypes.PUBLISH)
            properties.ContentType = _CONTENT_TYPE
            properties.UserProperty = list(pairs.items())
            return Publication(topic, event.body, properties)
        except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
            return error

    async def _publish(self, publications: Sequence[Publication]) -> SinkError:
        """Publish within the timeout, and return the error of messages without an outcome."""
        try:
            async with asyncio.timeout(self._settings.timeout.seconds):
                await self._publish_once(publications)
                for publication in publications:
                    # The broker ended the connection because of another message. Alone, a message
                    # harms no other; with other batches in flight, it may need several tries.
                    for _ in range(_TRIES):
                        if publication.outcome is None:
                            await self._publish_once([publication])
        except SinkError as error:
            return error
        except TimeoutError:
            return Temporary(_LATE)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        reason = "the broker ended the connection because of another event"
        return Temporary(reason, about_event=True)

    async def _publish_once(self, publications: Sequence[Publication]) -> None:
        if publications:
            _, publisher = await self._connected()
            await publisher.publish(publications)

    async def _connected(self) -> tuple[Connection, Publisher]:
        async with self._connecting:
            if self._open is None or not self._open[0].usable:
                self._open = None  # frees the messages of a dead connection
                self._open = await self._connect()
            if is_cancelled():
                # The client swallowed the cancellation.
                raise asyncio.CancelledError
            return self._open

    async def _connect(self) -> tuple[Connection, Publisher]:
        connection = await connect(self._broker)
        return connection, Publisher(connection, concurrency=self._settings.concurrency)

    def _outcome(
        self, publication: Publication, event: Event, failure: SinkError
    ) -> SinkResponse | Exception:
        code = publication.outcome
        if code is None or isinstance(code, Exception):
            return code or failure
        if code == NO_SUBSCRIBER and self._settings.unheard == "park":
            reason = f"nobody subscribes to the topic of {event.kind}"
            return Misconfigured(reason, status=code, about_event=True)
        return SinkResponse(status=code or None)

    def _user_properties(self, event: Event) -> dict[str, str]:
        # CloudEvents' MQTT binding has no prefix: attributes go by their own names.
        headers = message.headers(event, self._settings.format, prefix="")
        return {name: _printable(value) for name, value in headers.items()}


def build(settings: Settings, clock: Clock) -> MqttSink:  # noqa: ARG001
    faults = Faults()
    with faults.collect():
        topic = message.DestinationTemplate(settings.topic, key="topic", naming=_TOPIC)
        topic.samples(settings)
    with faults.collect():
        broker = _broker(settings)
    faults.raise_all()
    return MqttSink(settings, broker=broker, topic=topic)


def _check_length(key: str, text: str) -> None:
    if len(text.encode()) > STRING_MAX_BYTES:
        raise ValueError(f"{key}: is longer than {STRING_MAX_BYTES} bytes")


def _broker(settings: Settings) -> Broker:
    faults, context = Faults(), None
    username, password = (
        None if secret is None else secret.reveal()
        for secret in (settings.username, settings.password)
    )
    with faults.collect():
        scheme, host, port = _address(settings)
        context = tls.context(settings) if scheme == "mqtts" else None
    with faults.collect():
        if not settings.client_id.isprintable():
            raise ValueError("client_id: expected printable characters")
    named = {"client_id": settings.client_id, "username": username, "password": password}
    for key, text in named.items():
        with faults.collect():
            _check_length(key, text or "")
    faults.raise_all()
    return Broker(
        host,
        port,
        context=context,
        client_id=settings.client_id,
        timeout_s=settings.timeout.seconds,
        username=username,
        password=password,
    )


def _address(settings: Settings) -> tuple[str, str, int]:
    """Return scheme, host and port."""
    try:
        url = urlsplit(settings.url.reveal())
        host, port = url.hostname, url.port
    except ValueError:
        raise ValueError("url: is not a URL") from None  # the error's own text repeats it
    if url.scheme not in _PORTS or not host or port == 0:
        raise ValueError("url: expected mqtt:// or mqtts:// and a host")
    if url.username is not None:
        raise ValueError("url: username and password have keys of their own")
    if url.path.strip("/") or url.query or url.fragment:
        raise ValueError("url: nothing may follow the port")
    if url.scheme == "mqtt" and tls.is_asked_for(settings):
        raise ValueError("url: expected mqtts://, because TLS files are given")
    return url.scheme, host, port or _PORTS[url.scheme]


def _printable(value: str) -> str:
    """Percent-encode characters for which brokers close connections, such as control characters."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else quote(c, errors="replace") for c in value)
