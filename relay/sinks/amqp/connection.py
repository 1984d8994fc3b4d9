"""One AMQP connection that can be cut at once, and the meaning of its failures to an operator.

brokers.md, section 4. The library waits for its peer, and hides why a virtual host was not opened.
"""

import asyncio
import logging
import math
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import aiormq
from aiormq import spec
from yarl import URL

from relay.core import timeouts
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.outbound import tls

ERRORS = (aiormq.AMQPError, OSError, RuntimeError)
"""Everything that the library raises where the connection or the broker is at fault."""

EXCHANGE = re.compile(r"[a-zA-Z0-9-_.:@#,/+ ]{0,127}")
"""Names that the library can publish to: those of AMQP 0-9-1; RabbitMQ accepts more."""

LOST = "the connection was lost"
BLOCKED = "the broker blocks publishers: its memory or disk alarm is on"

_FRAME_BYTES, _CONTENT_BYTES = 8, 12
"""Around a frame's content, and before the properties in it: AMQP 0-9-1, sections 4.2.3, 4.2.6."""

_RESET = (ConnectionResetError, BrokenPipeError, EOFError)
_NOT_ALLOWED = (402, 403, 530)
"""Invalid path, access refused, not allowed: AMQP 0-9-1, section 1.5.2.5 (RabbitMQ says 530)."""

_LIMIT = re.compile(r"limit \(\d+\) is reached")

# Errors of a connection are those of the sends, which are counted and shown once.
logging.getLogger("aiormq").setLevel(logging.CRITICAL + 1)


class AmqpConnection:
    """The library's connection over `_Stream`, which can be cut whatever the peer does."""

    def __init__(self, url: URL, context: ssl.SSLContext | None) -> None:
        self._stream = _Stream(context)
        self._context = context
        self._connection = _Unbuffered(
            url,
            context=context,
            transport_factory=self._stream,
            client_properties={"connection_name": "relay"},
        )

    async def open(self) -> None:
        """Raises SinkError."""
        try:
            await self._connection.connect()
            await self._connection.ready()
        except ERRORS as error:
            failure = _connect_failure(error, self._stream.last)
            reset = isinstance(error.__cause__ or error, _RESET)
        except asyncio.CancelledError:
            self.abort()
            raise
        else:
            return
        self.abort()
        if reset and self._context is not None:
            host, port = self._stream.address
            failure = await tls.ask_verdict(host, port, self._context, peer="broker") or failure
        raise failure

    async def open_channel(self) -> aiormq.Channel:
        """Open a channel with publisher confirms, or cut the connection and raise SinkError."""
        try:
            with _translated():
                await self.unblocked()
                return await self._channel(publisher_confirms=True)
        except BaseException:
            self.abort()
            raise

    async def find_exchange(self, name: str) -> None:
        """Raises SinkError."""
        await self._ask(spec.Exchange.Declare(exchange=name, passive=True))

    async def find_queue(self, name: str) -> None:
        """Raises SinkError."""
        await self._ask(_AnyQueue(queue=name, passive=True))

    async def ask_right(self, exchange: str, key: str) -> bool:
        """Raise SinkError where the user may not write; return whether the broker could be asked.

        RabbitMQ looks at the user's rights first and at the properties next, so that it routes no
        message with these, whoever publishes it. As with any message, it says if it blocks.
        """
        if self._connection.server_properties.get("product") != "RabbitMQ":
            return False
        properties = spec.Basic.Properties(user_id="nobody", expiration="never")
        timeouts.restart()
        with _translated():
            channel = await self._channel(publisher_confirms=True)
            try:
                await channel.basic_publish(
                    b"", exchange=exchange, routing_key=key, properties=properties, mandatory=True
                )
            except aiormq.ChannelPreconditionFailed:
                return True
        raise Temporary("the broker took a message that it has to refuse")

    async def _ask(self, question: spec.Exchange.Declare | spec.Queue.Declare) -> None:
        """Ask on a channel of its own, because the broker closes it where something is missing."""
        with _translated():
            channel = await self._channel(publisher_confirms=False)
            try:
                await channel.rpc(question)
            finally:
                await channel.close()

    async def _channel(self, *, publisher_confirms: bool) -> aiormq.Channel:
        channel = await self._connection.channel(publisher_confirms=publisher_confirms)
        return cast("aiormq.Channel", channel)

    async def unblocked(self) -> None:
        """Wait while an alarm of the broker blocks publishers; return at once without one.

        The end of the connection ends the wait.
        """
        if not self.is_usable or self._is_ready():
            return
        ready = asyncio.ensure_future(self._connection.ready())
        closing = self._connection.closing
        try:
            await asyncio.wait({ready, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            closing.cancel()

    def _is_ready(self) -> bool:
        # Every message asks, so that this makes no task.
        ready = self._connection.ready()
        try:
            ready.send(None)
        except StopIteration:
            return True
        finally:
            ready.close()
        return False

    async def is_blocked(self) -> bool:
        """Whether an alarm of the broker, for memory or disk, blocks publishers."""
        try:
            async with asyncio.timeout(0):
                await self.unblocked()
        except TimeoutError:
            return True
        return False

    @property
    def properties_max(self) -> float:
        """Maximum bytes of a message's properties, which have to fit into one frame."""
        frame_max = self._connection.connection_tune.frame_max
        return frame_max - _FRAME_BYTES - _CONTENT_BYTES if frame_max else math.inf

    @property
    def is_usable(self) -> bool:
        return self._connection.is_opened and not self._stream.is_closing

    def abort(self) -> None:
        """Cut the connection; the library then fails everything that waits on it."""
        self._stream.abort()

    async def close(self) -> None:
        with suppress(TimeoutError, *ERRORS):
            async with asyncio.timeout(1):
                await self._connection.close()
        self.abort()


class _Unbuffered(aiormq.Connection):
    """Queues frames without a limit, so that a publish call never waits between check and write.

    What it wrote after the broker closed its channel would cost the whole connection.
    """

    FRAME_BUFFER_SIZE = 0


class _AnyQueue(spec.Queue.Declare):
    def validate(self) -> None:
        """Accept every name: RabbitMQ has queues whose names AMQP 0-9-1 does not allow."""


class _Reader(asyncio.StreamReader):
    """Keeps the last bytes read: where a virtual host is refused, the library drops the reason."""

    last = b""

    async def readexactly(self, n: int) -> bytes:
        self.last = await super().readexactly(n)
        return self.last


class _Stream(aiormq.TransportFactory):
    """The stream to the broker, which the library reads and writes."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self.address: tuple[str | None, int | None] = (None, None)
        self._reader: _Reader | None = None
        self._transport: asyncio.WriteTransport | None = None

    async def create(self, url: URL, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.address, loop = (url.host, url.port), asyncio.get_running_loop()
        reader = self._reader = _Reader(loop=loop)
        self._transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop),
            str(url.host),
            url.port or 0,
            ssl=self._context,
        )
        return reader, asyncio.StreamWriter(self._transport, protocol, reader, loop)

    @property
    def last(self) -> bytes:
        return self._reader.last if self._reader is not None else b""

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            # In CPython 3.11.2 a TLS transport that is closed already has nothing to abort.
            with suppress(AttributeError):
                self._transport.abort()


@contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of opening a channel, or of looking for the target, into sink errors."""
    try:
        yield
    except aiormq.ChannelNotFoundEntity:
        failure: SinkError = Misconfigured("the exchange or queue does not exist")
    except aiormq.ChannelAccessRefused:
        failure = Misconfigured("the user has no right to the exchange, topic or queue")
    except aiormq.ChannelClosed:
        failure = Temporary("the broker closed the channel")
    except ERRORS:
        failure = Temporary(LOST)
    else:
        return
    raise failure


def _connect_failure(error: Exception, last: bytes) -> SinkError:
    """Explain why there is no connection; `last` are the last bytes that the broker sent."""
    match error:
        case aiormq.ProbableAuthenticationError():
            return Misconfigured("wrong user or password, or the user may not come from here")
        case aiormq.AuthenticationError():
            return Misconfigured("the broker takes no password (PLAIN is off)")
        case aiormq.InvalidFrameError() if "Connection.Close " in str(error):
            closed = spec.Connection.Close()
            closed.unmarshal(last[4:])  # behind the numbers of its class and method
            return _host_failure(closed.reply_code, closed.reply_text)
    cause = error.__cause__ or error
    return tls.connect_failure(cause, peer="broker") or Temporary("could not connect")


def _host_failure(code: int | None, text: str) -> SinkError:
    """Explain why the virtual host was not opened; the text names the user, and is not repeated."""
    if _LIMIT.search(text):
        reason = "the broker takes no more connections of this user, or to this virtual host"
        return Temporary(reason, status=code)
    if code in _NOT_ALLOWED:
        reason = "the virtual host is missing, or the user has no right to it"
        return Misconfigured(reason, status=code)
    return Temporary("the virtual host is down, or the broker has another trouble", status=code)
