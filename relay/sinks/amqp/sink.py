"""The `amqp` sink: each event is one persistent message that RabbitMQ has routed and confirmed.

brokers.md, section 4; AMQP 0-9-1 drops no duplicates, so consumers do, by message_id.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from aiormq import spec
from yarl import URL

from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.setting_errors import Faults
from relay.core.sink import BatchSettings, Outcomes
from relay.outbound import message, tls
from relay.outbound.batching import BatchOnlySink, is_cancelled
from relay.sinks.amqp.connection import EXCHANGE, Connection
from relay.sinks.amqp.publisher import Publication, Publisher

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

_TRIES = 2
"""Attempts at publishing together what the fault of another has closed the channel of."""

_HEARTBEAT_S = 20
_PERSISTENT = 2
"""The delivery mode of messages that a durable queue keeps over a restart."""


class Settings(BatchSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type amqp."""

    destination: ClassVar[str | None] = "routing_key"
    url: Secret
    """`amqp://user:password@host:port/vhost`, or `amqps://`."""
    exchange: str = ""
    """The default exchange takes the routing key for a queue's name."""
    routing_key: str = "{{ event }}"
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 64


class AmqpSink(BatchOnlySink):
    """Publishes on one channel of one connection, made when it is needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        url: URL,
        key: message.DestinationTemplate,
        context: ssl.SSLContext | None,
    ) -> None:
        self._settings = settings
        self._url = url
        self._key = key
        self._context = context
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._publisher: Publisher | None = None

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        prepared = [self._publication(event) for event in events]
        failure = await self._publish([each for each in prepared if isinstance(each, Publication)])
        return [
            each.outcome or failure if isinstance(each, Publication) else each for each in prepared
        ]

    async def check(self) -> None:
        await self._connected()
        if self._connection is None:
            return
        if self._settings.exchange:
            await self._connection.find_exchange(self._settings.exchange)
        elif not self._key.is_template:
            await self._connection.find_queue(self._key.source)

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

    async def close(self) -> None:
        connection, self._connection, self._publisher = self._connection, None, None
        if connection is not None:
            await connection.close()

    def _publication(self, event: Event) -> Publication | Exception:
        try:
            key = self._key.resolve(event)
            return Publication(key, self._properties(event), event.body)
        except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
            return error

    async def _publish(self, publications: Sequence[Publication]) -> SinkError:
        """Return the error of those that are left without an outcome."""
        try:
            async with asyncio.timeout(self._settings.timeout.seconds):
                for _ in range(_TRIES):
                    await self._publish_rest(publications)
                for publication in publications:
                    # Alone, it is known to be at fault, and no other goes down with it.
                    await self._publish_rest([publication])
        except SinkError as error:
            return error
        except TimeoutError:
            return await self._lateness()
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        reason = "the broker closed the channel because of another message"
        return Temporary(reason, about_event=True)

    async def _publish_rest(self, publications: Sequence[Publication]) -> None:
        rest = [each for each in publications if each.outcome is None]
        if rest:
            publisher = await self._connected()
            await publisher.publish_all(rest)

    async def _lateness(self) -> SinkError:
        if self._connection is not None and await self._connection.is_blocked():
            return Temporary("the broker blocks publishers: its memory or disk alarm is on")
        return Temporary("the broker sent no confirm in time")

    async def _connected(self) -> Publisher:
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.is_usable:
                connection, self._publisher = Connection(self._url, self._context), None
                await connection.open()
                self._connection = connection
            if self._publisher is None or not self._publisher.is_open:
                channel = await connection.open_channel()
                self._publisher = Publisher(connection, channel, exchange=self._settings.exchange)
            if is_cancelled():
                # The client kept the cancellation for itself, and went on.
                raise asyncio.CancelledError
            return self._publisher

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
        url = _url(settings.url)
        context = _tls(settings, url)
    faults.raise_all()
    return AmqpSink(settings, url=url, key=key, context=context)


def _url(secret: Secret) -> URL:
    try:
        url = URL(secret.reveal())
        port = url.port
    except ValueError:
        raise ValueError("url: is not a URL") from None  # the error's own text repeats it
    if url.scheme not in ("amqp", "amqps") or not url.host or port == 0:
        raise ValueError("url: expected amqp:// or amqps:// and a host")
    if url.query or url.fragment:
        raise ValueError("url: nothing may follow the virtual host; TLS files have their own keys")
    return url.with_query(heartbeat=str(_HEARTBEAT_S))


def _tls(settings: Settings, url: URL) -> ssl.SSLContext | None:
    if url.scheme == "amqps":
        return tls.context(settings)
    if tls.is_asked_for(settings):
        raise ValueError("url: expected amqps://, because TLS files are given")
    return None


def _short(text: str) -> str:
    """Fit a text into a short string; `relay-id` and `relay-event` carry the whole."""
    raw = text.encode()
    return text if len(raw) <= SHORT_MAX_BYTES else hashlib.sha256(raw).hexdigest()
