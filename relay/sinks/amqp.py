"""The `amqp` sink: each event is one persistent message that RabbitMQ has routed and confirmed.

brokers.md, section 4; AMQP 0-9-1 drops no duplicates, so consumers do, by message_id.
"""

import asyncio
import hashlib
import ssl
from contextlib import suppress
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, DeliveryMode
from yarl import URL

from relay import message, tls
from relay.amqp_connection import EXCHANGE, FAILURES, Connection, publish_failure
from relay.clock import Clock
from relay.delivery import Answer
from relay.errors import Refused, Temporary
from relay.event import Event
from relay.faults import Faults
from relay.settings import Secret
from relay.sink import SinkSettings

SHORT_MAX_BYTES = 255
"""A short string of AMQP 0-9-1, section 4.2.5.3; routing keys and message ids are such."""

CLOUDEVENTS_PREFIX = "cloudEvents_"
"""The AMQP 1.0 binding's: RabbitMQ makes its application properties of headers of 0-9-1."""

_SHARE = 0.9
"""Of the sink's timeout, so that the reason is ours rather than that time was up."""

_HEARTBEAT_S = 20


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type amqp."""

    url: Secret
    """`amqp://user:password@host:port/vhost`, or `amqps://`."""
    exchange: str = ""
    """The default exchange takes the routing key for a queue's name."""
    routing_key: str = "{{ event }}"
    format: message.Format = "raw"
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    concurrency: int = 32


class AmqpSink:
    """Publishes on one channel of one connection, made when it is needed."""

    def __init__(
        self, settings: Settings, *, url: URL, key: message.Target, context: ssl.SSLContext | None
    ) -> None:
        self._settings = settings
        self._url = url
        self._key = key
        self._context = context
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._exchange: AbstractExchange | None = None
        self._channel: AbstractChannel | None = None
        self._sending: dict[str, asyncio.Future[None]] = {}
        self._confirms = 0

    async def send(self, event: Event) -> Answer:
        key = self._key.resolve(event)
        if len(key.encode()) > SHORT_MAX_BYTES:
            raise Refused(f"the routing key is longer than {SHORT_MAX_BYTES} bytes")
        sent = self._message(event)
        try:
            async with asyncio.timeout(self._settings.timeout.seconds * _SHARE):
                await self._publish_alone(sent, key)
        except TimeoutError:
            reason = "the broker sent no confirm in time"
        else:
            return Answer()
        if self._connection is not None and await self._connection.is_blocked():
            reason = "the broker blocks publishers: its memory or disk alarm is on"
        raise Temporary(reason)

    async def check(self) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout.seconds * _SHARE):
                await self._find_target()
        except TimeoutError:
            reason = "the broker does not answer in time"
        else:
            return
        raise Temporary(reason)

    def render(self, event: Event) -> dict[str, Any]:
        shown = self._message(event)
        return {
            "exchange": self._settings.exchange,
            "routing_key": self._key.render(event),
            "message_id": shown.message_id,
            "type": shown.type,
            "headers": dict(shown.headers),
            "body": event.body.decode(errors="replace"),
        }

    async def close(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is None:
            return
        with suppress(TimeoutError, *FAILURES):
            async with asyncio.timeout(1):
                await connection.close()
        connection.abort()

    async def _publish_alone(self, sent: aio_pika.Message, key: str) -> None:
        """Never two of one id at once: the library finds what was returned by its id alone."""
        id_ = str(sent.message_id)
        while (other := self._sending.get(id_)) is not None:
            await asyncio.wait({other})
        done = self._sending[id_] = asyncio.get_running_loop().create_future()
        try:
            await self._publish(sent, key)
        finally:
            del self._sending[id_]
            done.set_result(None)

    async def _publish(self, sent: aio_pika.Message, key: str) -> None:
        exchange = await self._connected()
        connection, confirms = self._connection, self._confirms
        try:
            await exchange.publish(sent, key, mandatory=True)
        except FAILURES as error:
            failure = publish_failure(error, sent, exchange=self._settings.exchange)
        except asyncio.CancelledError:
            silent = self._confirms == confirms
            if connection is not None and silent and not await connection.is_blocked():
                # Nothing came all the while: a frozen broker would take the rest later, unasked.
                connection.abort()
            raise
        else:
            self._confirms += 1
            return
        raise failure

    async def _connected(self) -> AbstractExchange:
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.is_usable:
                connection, self._exchange = Connection(self._url, self._context), None
                await connection.open()
                self._connection = connection
            channel, exchange = self._channel, self._exchange
            if exchange is None or channel is None or channel.is_closed:
                channel = await connection.open_channel()
                exchange = await channel.get_exchange(self._settings.exchange, ensure=False)
                self._channel, self._exchange = channel, exchange
            return exchange

    async def _find_target(self) -> None:
        await self._connected()
        if self._connection is None:
            return
        if self._settings.exchange:
            await self._connection.find_exchange(self._settings.exchange)
        elif not self._key.is_template:
            await self._connection.find_queue(self._key.source)

    def _message(self, event: Event) -> aio_pika.Message:
        headers = message.headers(event, self._settings.format, prefix=CLOUDEVENTS_PREFIX)
        return aio_pika.Message(
            event.body,
            headers=dict(headers),
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT,
            message_id=_short(event.id),
            type=_short(event.kind),
            timestamp=event.received_ms // 1000,
            app_id="relay",
        )


def build(settings: Settings, clock: Clock) -> AmqpSink:  # noqa: ARG001
    faults, context = Faults(), None
    with faults.noted():
        key = message.Target(settings.routing_key, key="routing_key")
        for sample in key.samples(settings):
            if len(sample.encode()) > SHORT_MAX_BYTES:
                raise ValueError(f"routing_key: is longer than {SHORT_MAX_BYTES} bytes")
    with faults.noted():
        if EXCHANGE.fullmatch(settings.exchange) is None:
            raise ValueError("exchange: expected at most 127 letters, digits, blanks and -_.:@#,/+")
    with faults.noted():
        url = _url(settings.url)
        context = _tls(settings, url)
    faults.tell()
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
