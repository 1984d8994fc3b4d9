"""One AMQP connection that can be ended at once, and what its failures mean to an operator.

brokers.md, section 4; the library waits for its peer, and keeps from us why it was turned away.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import aio_pika
from aio_pika import exceptions
from aiormq.channel import Channel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands
from yarl import URL

from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.outbound import connect_errors, tls

FAILURES = (exceptions.AMQPError, OSError, RuntimeError)
"""Everything that the library raises where the connection or the broker is at fault."""

EXCHANGE = re.compile(r"[a-zA-Z0-9-_.:@#,/+ ]{0,127}")
"""Names that the library can publish to, which are AMQP's; RabbitMQ knows more."""

LOST = "the connection was lost"

_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CUT = (ConnectionResetError, BrokenPipeError, EOFError)
_NOT_ALLOWED = (402, 403, 530)
"""Invalid path, access refused, not allowed: AMQP 0-9-1, section 1.5.2.5 (RabbitMQ says 530)."""

_LIMIT = re.compile(r"limit \(\d+\) is reached")

# A connection that is lost is an error of the send, which is counted and shown once.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Connection(aio_pika.Connection):
    """The library's connection, which can also be ended at once, whatever its peer does."""

    def __init__(self, url: URL, context: ssl.SSLContext | None) -> None:
        super().__init__(url, ssl_context=context, client_properties={"connection_name": "relay"})
        self._stream = _Stream(TLSTransportFactory() if context else TCPTransportFactory())
        self.kwargs["transport_factory"] = self._stream
        self._aborted = False

    def __del__(self) -> None:
        """Start nothing: the library would, in whichever thread collects what failed to open."""

    async def open(self) -> None:
        """Raises SinkError."""
        try:
            await self.connect()
        except FAILURES as error:
            failure = _connect_failure(error, self._stream.last)
            cut = isinstance(error.__cause__, _CUT)
        except asyncio.CancelledError:
            self.abort()
            raise
        else:
            return
        self.abort()
        if cut and self.kwargs["context"] is not None:
            failure = await self._stream.verdict() or failure
        raise failure

    async def open_channel(self) -> Channel:
        """Open one that confirms; raises SinkError."""
        try:
            with _translated():
                await self.unblocked()
                if self.transport is None:
                    raise ConnectionError
                opened = await self.transport.connection.channel(publisher_confirms=True)
                return cast("Channel", opened)
        except asyncio.CancelledError:
            self.abort()
            raise

    async def find_exchange(self, name: str) -> None:
        """Raises SinkError."""
        await self._ask(commands.Exchange.Declare(exchange=name, passive=True))

    async def find_queue(self, name: str) -> None:
        """Raises SinkError."""
        await self._ask(_AnyQueue(queue=name, passive=True))

    async def _ask(self, question: commands.Exchange.Declare | commands.Queue.Declare) -> None:
        """On a channel of its own, because what is missing ends it."""
        with _translated():
            channel = await self.channel()
            try:
                inner: Any = await channel.get_underlay_channel()
                await inner.rpc(question)
            finally:
                await channel.close()

    async def unblocked(self) -> None:
        """Wait while the broker takes nothing; a connection that is gone is not waited for."""
        if self.transport is not None and self.is_usable:
            await self.transport.ready()

    async def is_blocked(self) -> bool:
        """Whether the broker takes nothing, for want of memory or disk."""
        if self.transport is None or not self.is_usable:
            return False
        try:
            async with asyncio.timeout(0):
                await self.transport.ready()
        except TimeoutError:
            return True
        return False

    @property
    def is_usable(self) -> bool:
        if self.transport is None or self._aborted:
            return False
        return not self.transport.connection.is_closed

    def abort(self) -> None:
        """Cut the connection; the library notices and gives up what waits."""
        self._aborted = True
        if self._stream.writer is not None:
            # In CPython 3.11.2 a TLS transport that is closed already has nothing to abort.
            with suppress(AttributeError):
                self._stream.writer.transport.abort()


class _AnyQueue(commands.Queue.Declare):
    def validate(self) -> None:
        """Let every name pass: the library knows fewer than RabbitMQ does."""


class _Stream(TransportFactory):
    """Keeps what the library hides: the stream to the broker, and what it last said."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._connect: Callable[[], Coroutine[Any, Any, _Ends]] | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.last = b""

    async def create(self, url: URL, **options: Any) -> _Ends:
        self._connect = partial(self._inner.create, url, **options)
        reader, self.writer = await self._connect()
        return cast("asyncio.StreamReader", _Ear(reader, self)), self.writer

    async def verdict(self) -> SinkError | None:
        """Connect once more, to hear what the broker says of our certificate."""
        if self._connect is None:
            return None
        try:
            reader, writer = await self._connect()
        except FAILURES as error:
            return tls.failure(error.__cause__ or error, peer="broker")
        try:
            return await tls.verdict(reader, peer="broker")
        finally:
            writer.transport.abort()


class _Ear:
    """Reads a stream as the library does."""

    def __init__(self, reader: asyncio.StreamReader, stream: _Stream) -> None:
        self._reader = reader
        self._stream = stream
        self.at_eof, self.read = reader.at_eof, reader.read

    async def readexactly(self, size: int) -> bytes:
        self._stream.last = found = await self._reader.readexactly(size)
        return found


@contextmanager
def _translated() -> Iterator[None]:
    """Make sink errors of those of opening a channel and of looking for the target."""
    try:
        yield
    except exceptions.ChannelNotFoundEntity:
        failure: SinkError = Misconfigured("the exchange or queue does not exist")
    except exceptions.ChannelClosed as error:
        refused = "ACCESS_REFUSED" in str(error)
        failure = Misconfigured("the user has no right to the exchange or queue")
        failure = failure if refused else Temporary("the broker closed the channel")
    except FAILURES:
        failure = Temporary(LOST)
    else:
        return
    raise failure


def _connect_failure(error: Exception, last: bytes) -> SinkError:
    """Say why there is no connection; `last` is what the broker last said."""
    cause = error.__cause__ or error
    match error:
        case exceptions.ProbableAuthenticationError():
            return Misconfigured("wrong user or password, or the user may not come from here")
        case exceptions.AuthenticationError():
            return Misconfigured("the broker takes no password (PLAIN is off)")
        case exceptions.InvalidFrameError() if "Connection.Close " in str(error):
            closed = commands.Connection.Close()
            closed.unmarshal(last[4:])  # behind the numbers of its class and method
            return _turned_away(closed.reply_code, closed.reply_text)
    return connect_errors.failure(cause, peer="broker") or Temporary("could not connect")


def _turned_away(code: int | None, text: str) -> SinkError:
    """Say why the virtual host was not opened; the text names the user, and is not repeated."""
    if _LIMIT.search(text):
        reason = "the broker takes no more connections of this user, or to this virtual host"
        return Temporary(reason, status=code)
    if code in _NOT_ALLOWED:
        reason = "the virtual host is missing, or the user has no right to it"
        return Misconfigured(reason, status=code)
    return Temporary("the virtual host is down, or the broker has another trouble", status=code)
