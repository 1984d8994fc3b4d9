"""One AMQP connection that can be ended at once, and what its failures mean to an operator.

brokers.md, section 4; the library waits for its peer, and keeps from us why it was turned away.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from relay import tls
from relay.errors import Misconfigured, Refused, SinkError, Temporary

FAILURES = (exceptions.AMQPError, OSError, RuntimeError)
"""Everything that the library raises where the connection or the broker is at fault."""

_SIZE = re.compile(r"message size (\d+)")

# A connection that is lost is an error of the send, which is counted and shown once.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Connection(aio_pika.Connection):
    """The library's connection, which can also be ended at once, whatever its peer does."""

    def __init__(self, url: URL, context: ssl.SSLContext | None) -> None:
        super().__init__(url, ssl_context=context, client_properties={"connection_name": "relay"})
        self._factory = _Transport(TLSTransportFactory() if context else TCPTransportFactory())
        self.kwargs["transport_factory"] = self._factory
        self._aborted = False

    async def open(self) -> None:
        """Raises SinkError."""
        try:
            await self.connect()
        except FAILURES as error:
            failure = _connect_failure(error)
        except asyncio.CancelledError:
            self.abort()
            raise
        else:
            return
        self.abort()
        raise failure

    async def open_channel(self) -> AbstractChannel:
        """Raises SinkError."""
        try:
            with translated():
                return await self.channel(on_return_raises=True)
        except asyncio.CancelledError:
            self.abort()
            raise

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
        if self._factory.writer is not None:
            self._factory.writer.transport.abort()


class _Transport(TransportFactory):
    """Keeps the stream, which the library hides."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self.writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: URL, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self.writer = await self._inner.create(url, **options)
        return reader, self.writer


def publish_failure(error: Exception, sent: aio_pika.Message, *, exchange: str) -> SinkError:
    """Say why a message was not taken."""
    match error:
        case exceptions.PublishError():
            return Misconfigured(f"no queue takes the routing key of {sent.type}")
        case exceptions.DeliveryError():
            return Temporary("the queue rejects what is new: it is full, or its leader is away")
        case exceptions.ChannelNotFoundEntity():
            return Misconfigured(f"there is no exchange {exchange}")
        case exceptions.ChannelClosed() if "ACCESS_REFUSED" in str(error):
            return Misconfigured("the user may not write to the exchange, or to this topic")
        case exceptions.ChannelPreconditionFailed():
            # It ends the channel, and with it what others had under way.
            found = _SIZE.search(str(error))
            if found is None or int(found[1]) == len(sent.body):
                return Refused("larger than the broker's max_message_size")
            return Temporary("the broker closed the channel because of another message")
    return Temporary("the connection was lost")


@contextmanager
def translated() -> Iterator[None]:
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
        failure = Temporary("the connection was lost")
    else:
        return
    raise failure


def _connect_failure(error: Exception) -> SinkError:
    cause = error.__cause__ or error
    of_tls = tls.failure(cause, peer="broker")
    if of_tls is not None:
        return of_tls
    if isinstance(cause, ConnectionRefusedError):
        return Temporary("connection refused")
    match error:
        case exceptions.ProbableAuthenticationError():
            return Misconfigured("wrong user or password, or the user may not come from here")
        case exceptions.AuthenticationError():
            return Misconfigured("the broker takes no password (PLAIN is off)")
        case exceptions.InvalidFrameError() if "Connection.Close " in str(error):
            return Misconfigured("the virtual host is missing, or the user has no right to it")
    return Temporary("could not connect")
