"""The `mqtt` sink: each event is one QoS 1 message that the broker has acknowledged.

brokers.md, section 10; MQTT drops no duplicates, so consumers do, by the user property relay-id.
"""

import asyncio
import re
from typing import Any, ClassVar, Literal
from urllib.parse import SplitResult, quote, urlsplit

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings
from relay.outbound import message, sink_url, tls
from relay.outbound.publishing import PublishingSink
from relay.sinks.mqtt.connection import Broker, connect
from relay.sinks.mqtt.errors import NO_SUBSCRIBER
from relay.sinks.mqtt.publisher import MqttPublisher, Publication

STRING_MAX_BYTES = 65_535
"""MQTT 5.0, section 1.5.4: of topics, names and values."""

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_CHECK_SHARE = 0.9
"""Part of `timeout` for a check, so that the sink's reason comes before the caller's timeout."""

_CONTENT_TYPE = "application/json"

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


class Settings(BatchSettings, tls.TlsSettings, frozen=True, kw_only=True):
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
    """Outcome if the broker drops a message because its topic has no subscriber."""
    format: message.Format = "raw"
    concurrency: int = 32


class MqttSink(PublishingSink[Publication, MqttPublisher]):
    """Publishes over one connection."""

    tries_alone = 5
    """With other batches in flight, each of which may end the connection."""

    def __init__(
        self, settings: Settings, *, broker: Broker, topic: message.DestinationTemplate
    ) -> None:
        super().__init__(settings)
        self._settings = settings
        self._broker = broker
        self._topic = topic

    async def check(self) -> str | None:
        try:
            async with asyncio.timeout(self._settings.timeout.seconds * _CHECK_SHARE):
                if not self._settings.client_id:
                    return await super().check()
                # A second connection with this id would end the first.
                return await self._examine(await self._connected())
        except TimeoutError:
            if self._settings.client_id and self._publisher is not None:
                self._publisher.connection.abort()
            raise await self.timeout_error() from None

    def render(self, event: Event) -> dict[str, Any]:
        return {
            "topic": self._topic.render(event),
            "content_type": _CONTENT_TYPE,
            "user_properties": self._user_properties(event),
            "body": event.body.decode(errors="replace"),
        }

    def _message(self, event: Event) -> Publication:
        topic, pairs = self._topic.resolve(event), self._user_properties(event)
        for name, value in pairs.items():
            if len(value.encode()) > STRING_MAX_BYTES:
                raise Refused(
                    f"the property {name} is longer than {STRING_MAX_BYTES} bytes", unsent=True
                )
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = _CONTENT_TYPE
        properties.UserProperty = list(pairs.items())
        return Publication(event.kind, topic, event.body, properties)

    async def _connect(self, replaced: MqttPublisher | None) -> MqttPublisher:  # noqa: ARG002
        if self._settings.client_id:
            # The broker would end them itself, by a DISCONNECT that blames the config.
            for publisher in self._uses:
                publisher.connection.abort()
        connection = await connect(self._broker)
        return MqttPublisher(connection, concurrency=self._settings.concurrency)

    async def _examine(self, publisher: MqttPublisher) -> str:
        await publisher.connection.ping()
        return "logged in; MQTT cannot be asked for the right to publish, or for subscribers"

    def _outcome(self, message: Publication) -> SinkResponse | Exception | None:
        code = message.outcome
        if code is None or isinstance(code, Exception):
            return code
        if code == NO_SUBSCRIBER and self._settings.unheard == "park":
            reason = f"nobody subscribes to the topic of {message.kind}"
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


def _broker(settings: Settings) -> Broker:
    faults, context = Faults(), None
    with faults.collect():
        url = _url(settings)
        if sink_url.uses_tls(url.scheme, settings, secure="mqtts"):
            context = tls.context(settings)
    with faults.collect():
        if not settings.client_id.isprintable():
            raise ValueError("client_id: expected printable characters")
    for key in ("client_id", "username", "password"):
        with faults.collect():
            if len(_revealed(getattr(settings, key)).encode()) > STRING_MAX_BYTES:
                raise ValueError(f"{key}: is longer than {STRING_MAX_BYTES} bytes")
    faults.raise_all()
    return Broker(
        str(url.hostname),
        url.port or _PORTS[url.scheme],
        context=context,
        client_id=settings.client_id,
        timeout_s=settings.timeout.seconds,
        username=settings.username,
        password=settings.password,
    )


def _revealed(value: str | Secret | None) -> str:
    return value.reveal() if isinstance(value, Secret) else value or ""


def _url(settings: Settings) -> SplitResult:
    url = sink_url.parse(settings.url, schemes=("mqtt", "mqtts"), kind=urlsplit)
    if url.username is not None:
        raise ValueError("url: username and password have keys of their own")
    if url.path.strip("/") or url.query or url.fragment:
        raise ValueError("url: nothing may follow the port")
    return url


def _printable(value: str) -> str:
    """Percent-encode characters for which brokers close connections, such as control characters."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else quote(c, errors="replace") for c in value)
