"""The `amqp` sink: each event is one persistent message that RabbitMQ has routed and confirmed.

brokers.md, section 4; AMQP 0-9-1 drops no duplicates, so consumers do, by message_id.
"""

import hashlib
import ssl
from datetime import UTC, datetime
from typing import Any, ClassVar

from aiormq import spec
from yarl import URL

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery import SinkResponse
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings
from relay.outbound import message, sink_url, tls
from relay.outbound.publishing import PublishingSink
from relay.sinks.amqp.connection import BLOCKED, EXCHANGE, AmqpConnection
from relay.sinks.amqp.publisher import AmqpPublisher, Publication

SHORT_MAX_BYTES = 255
"""A short string of AMQP 0-9-1, section 4.2.5.3; routing keys and message ids are such."""

CLOUDEVENTS_PREFIX = "cloudEvents_"
"""The AMQP 1.0 binding's: RabbitMQ makes its application properties of headers of 0-9-1."""

_ROUTING_KEY = message.Naming(lambda _: True, "a routing key", SHORT_MAX_BYTES)
"""Its meaning is up to the exchange and its bindings."""

_QUEUE = message.Naming(
    bool,
    "the name of a queue",
    SHORT_MAX_BYTES,
    reserved=(message.Reserved("amq.", "queues that the broker names, such as those for replies"),),
)
"""The default exchange takes the routing key for a queue's name."""

_HEARTBEAT_S = 20
_PERSISTENT = 2
"""The delivery mode of messages that a durable queue keeps over a restart."""


class Settings(BatchSettings, tls.TlsSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type amqp."""

    destination: ClassVar[str | None] = "routing_key"
    url: Secret
    """`amqp://user:password@host:port/vhost`, or `amqps://`."""
    exchange: str = ""
    """The default exchange takes the routing key for a queue's name."""
    routing_key: str = "{{ event }}"
    format: message.Format = "raw"
    concurrency: int = 64


class AmqpSink(PublishingSink[Publication, AmqpPublisher]):
    """Publishes on one channel of one connection."""

    tries_together = 2

    def __init__(
        self,
        settings: Settings,
        *,
        url: URL,
        key: message.DestinationTemplate,
        context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(settings)
        self._settings = settings
        self._url = url
        self._key = key
        self._context = context

    def render(self, event: Event) -> dict[str, Any]:
        shown = self._properties(event)
        return {
            "exchange": self._settings.exchange,
            "routing_key": self._key.render(event),
            "message_id": shown.message_id,
            "type": shown.message_type,
            "headers": shown.headers,
            "body": event.body.decode(errors="replace"),
        }

    def _message(self, event: Event) -> Publication:
        key = self._key.resolve(event)
        return Publication(key, self._properties(event), event.body)

    async def _connect(self, replaced: AmqpPublisher | None) -> AmqpPublisher:
        if replaced is None or not replaced.was_blocked:
            # A broker that closes the channel keeps the connection.
            return await self._open(None if replaced is None else replaced.hand_over())
        if await replaced.connection.is_blocked():
            return await self._unblocked() or replaced
        replaced.was_blocked = False
        return replaced

    async def _open(self, connection: AmqpConnection | None) -> AmqpPublisher:
        if connection is None:
            connection = AmqpConnection(self._url, self._context)
            await connection.open()
        channel = await connection.open_channel()
        return AmqpPublisher(connection, channel, exchange=self._settings.exchange)

    async def _unblocked(self) -> AmqpPublisher | None:
        """Connect once more; return None where publishers are blocked there, too."""
        publisher, is_welcome = await self._open(None), False
        connection = publisher.connection
        try:
            await self._ask_right(connection)
            is_welcome = not await connection.is_blocked()
        finally:
            if not is_welcome:
                connection.abort()
        return publisher if is_welcome else None

    async def _examine(self, publisher: AmqpPublisher) -> str | None:
        connection, unasked = publisher.connection, []
        if self._settings.exchange:
            await connection.find_exchange(self._settings.exchange)
        elif not self._key.is_template:
            await connection.find_queue(self._key.source)
        if self._settings.exchange or self._key.is_template:
            unasked.append("whether a queue takes the routing key")
        if not await self._ask_right(connection):
            unasked.append("the right to publish")
        if await connection.is_blocked():
            raise Temporary(BLOCKED)
        return f"not asked: {' and '.join(unasked)}" if unasked else None

    async def _ask_right(self, connection: AmqpConnection) -> bool:
        exchange, keys = self._settings.exchange, self._key.samples(self._settings)
        return all([await connection.ask_right(exchange, key) for key in keys])

    def _outcome(self, message: Publication) -> SinkResponse | Exception | None:
        return message.outcome

    async def timeout_error(self) -> SinkError:
        if self._publisher is not None and await self._publisher.connection.is_blocked():
            self._publisher.was_blocked = True
            return Temporary(BLOCKED)
        return await super().timeout_error()

    def _properties(self, event: Event) -> spec.Basic.Properties:
        headers = message.headers(event, self._settings.format, prefix=CLOUDEVENTS_PREFIX)
        return spec.Basic.Properties(
            content_type="application/json",
            headers=dict(headers),
            delivery_mode=_PERSISTENT,
            message_id=_short(event.id),
            timestamp=datetime.fromtimestamp(event.received_ms // 1000, UTC),
            message_type=_short(event.kind),
            app_id="relay",
        )


def build(settings: Settings, clock: Clock) -> AmqpSink:  # noqa: ARG001
    faults, context = Faults(), None
    with faults.collect():
        naming = _ROUTING_KEY if settings.exchange else _QUEUE
        key = message.DestinationTemplate(settings.routing_key, key="routing_key", naming=naming)
        key.samples(settings)
    with faults.collect():
        if EXCHANGE.fullmatch(settings.exchange) is None:
            raise ValueError("exchange: expected at most 127 letters, digits, blanks and -_.:@#,/+")
        if settings.exchange.startswith("amq.rabbitmq."):
            raise ValueError("exchange: begins with amq.rabbitmq., to which only the broker writes")
    with faults.collect():
        url = _url(settings)
        if sink_url.uses_tls(url.scheme, settings, secure="amqps"):
            context = tls.context(settings)
    faults.raise_all()
    return AmqpSink(settings, url=url, key=key, context=context)


def _url(settings: Settings) -> URL:
    url = sink_url.parse(settings.url, schemes=("amqp", "amqps"), kind=URL)
    if url.query or url.fragment:
        raise ValueError("url: nothing may follow the virtual host; TLS files have their own keys")
    return url.with_query(heartbeat=str(_HEARTBEAT_S))


def _short(text: str) -> str:
    """Fit a text into a short string; `relay-id` and `relay-event` carry the whole."""
    raw = text.encode()
    return text if len(raw) <= SHORT_MAX_BYTES else hashlib.sha256(raw).hexdigest()
