"""A connector whose connections take no bytes for a response but those that answer the request.

aiohttp queues a response that comes while its connection idles, and returns it to the next request
(aio-libs/aiohttp#13656): a delivery that never was. A guard between transport and protocol ends
such a connection instead.
"""

import asyncio
import fcntl
import select
import struct
import termios
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import aiohttp
import httptools

from relay.outbound.http import odd_answers
from relay.outbound.http.odd_answers import INTERIM_MAX

_UNREAD, _UNCONFIRMED = termios.FIONREAD, termios.TIOCOUTQ
"""As tcp(7) has them, SIOCINQ and SIOCOUTQ."""


class UnexpectedResponseError(aiohttp.ClientConnectionError):
    """The peer sent a response before it had the request."""


class Framing:
    """Finds the end of each response on one connection, and bytes that belong to none."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._is_broken = False
        self.interim = 0
        self.is_due = False
        """A request was sent, and its response is not complete."""
        self.is_begun = False
        self.is_in_head = False
        """The last byte was in the head of a response."""

    @property
    def is_broken(self) -> bool:
        """Whether the peer sent anything else than one response."""
        return self._is_broken

    @property
    def is_clean(self) -> bool:
        """Whether every request has its response, and nothing else has come."""
        return not (self.is_due or self._is_broken)

    def expect(self) -> None:
        """Take the next bytes for a response."""
        self.is_due, self.is_begun, self.interim = True, False, 0
        self.is_in_head = True

    def feed(self, data: bytes) -> None:
        self.is_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_broken = True

    def spoil(self) -> None:
        """Have the connection end after the response."""
        self._is_broken = True

    def on_message_begin(self) -> None:
        if self.is_due:
            self.is_in_head = True
        else:
            self._is_broken = True

    def on_headers_complete(self) -> None:
        self.is_in_head = False

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self.interim += 1
        else:
            self.is_due = False


class _ObservedTransport:
    """Announces the first write of each request, before which no byte may have come."""

    def __init__(self, transport: asyncio.Transport, announce: Callable[[], None]) -> None:
        self._transport = transport
        self._announce = announce

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._announce()
        self._transport.write(data)

    def writelines(self, data: Iterable[bytes]) -> None:
        self._announce()
        self._transport.writelines(data)


class ResponseGuard(asyncio.Protocol):
    """Passes a transport's calls on to aiohttp's protocol, but ends the connection at surplus."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._inner = cast("asyncio.Protocol", transport.get_protocol())
        self._socket = transport.get_extra_info("socket")
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLOUT)
        self._framing = Framing()
        self._response = bytearray()
        """Of the last request, also once it is complete: aiohttp may refuse it even so."""
        self._passed = 0
        """Bytes of it that aiohttp has."""
        self.uses = 0
        self.serves_once = False
        """Whether it may carry no second request, even if aiohttp pools it after the first."""
        self.error: UnexpectedResponseError | None = None
        self._awaits_request = False
        transport.set_protocol(self)
        observed = _ObservedTransport(transport, self._expect)
        self._inner.connection_made(cast("asyncio.Transport", observed))

    @property
    def is_spent(self) -> bool:
        """Whether no further request may use this connection; only meaningful while it idles.

        An idle connection becomes readable only by its end or by surplus bytes. It is not writable
        where a response came early and the rest of its request was never read.
        """
        if self.serves_once or not self._framing.is_clean:
            return True
        return self._poll.poll(0) != [(self._socket.fileno(), select.POLLOUT)]

    def await_request(self) -> None:
        """Expect a response once the next request is written."""
        self._awaits_request = True
        self._response.clear()
        self._passed = 0

    def _expect(self) -> None:
        if not self._awaits_request:
            return
        self._awaits_request = False
        # With TLS the kernel may hold records that are part of no response.
        if not self.is_tls and not self._transport.is_closing() and self._count(_UNREAD) > 0:
            self._refuse()
        self._framing.expect()

    def fault(self) -> str:
        """Describe what the peer sent in place of a response."""
        return odd_answers.fault(bytes(self._response))

    def progress(self) -> str:
        """Describe the part of a due response that has arrived; empty if none has."""
        if not (self._response and self._framing.is_due):
            return ""
        return odd_answers.fault(bytes(self._response), ends="what came ends")

    def abort(self, use: int) -> None:
        """Close the connection and drop unsent bytes, unless it serves a later request already."""
        if use == self.uses:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        framing = self._framing
        if not framing.is_due or self._is_too_early:
            self._refuse()
            return
        framing.feed(data)
        self._response += data
        if framing.interim > INTERIM_MAX:
            self._transport.abort()
            return
        if framing.is_in_head and self._is_held():
            return
        end = len(self._response)
        if not (self._framing.is_due or self._framing.is_clean):
            # One garbage byte behind a response would have aiohttp reject all of it.
            end = _length_of_first(bytes(self._response))
        ready = bytes(self._response[self._passed : end])
        self._passed = end
        self._inner.data_received(ready)
        if not self._framing.is_due:
            self._end_response()

    def _is_held(self) -> bool:
        """Hold a head back until it is whole; then mend it if it needs that, and can be mended."""
        if not self._framing.is_broken:
            return len(self._response) - self._passed <= odd_answers.HEAD_BYTES
        held = bytes(self._response[self._passed :])
        if odd_answers.is_mendable_yet(held):
            return True
        answer = odd_answers.mended(held)
        if answer is not None:
            self._response[self._passed :] = answer
            self._framing = Framing()
            self._framing.expect()
            self._framing.feed(answer)
            self._framing.spoil()
        return False

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    @property
    def _is_too_early(self) -> bool:
        """Whether the peer sent these bytes before it had the whole request.

        TCP acknowledges received bytes together with sent ones, so unacknowledged bytes of the
        request prove it.
        The first response on a connection may be early, because a server may refuse a request by
        its head; a later one may be a second response to the previous request.
        """
        if self._framing.is_begun or self.uses < 2:
            return False
        return self._transport.get_write_buffer_size() > 0 or self._count(_UNCONFIRMED) > 0

    def _end_response(self) -> None:
        # The rest of a request that is answered early could fill the connection for good.
        if not self._framing.is_clean or self._transport.get_write_buffer_size() > 0:
            self._transport.abort()

    def _refuse(self) -> None:
        self.error = UnexpectedResponseError()
        self._transport.abort()

    def _count(self, of: int) -> int:
        """Count bytes that the kernel holds: unread, or unconfirmed by the peer."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), of, bytes(4)))
        return int(count)


class Use(NamedTuple):
    """A guarded connection, and the number of the request that it serves."""

    guard: ResponseGuard
    number: int


current_use: ContextVar[Use | None] = ContextVar("current_use", default=None)
"""The connection of this task's exchange."""

serves_once: ContextVar[bool] = ContextVar("serves_once", default=False)
"""Whether the connection of this task's exchange is for this exchange alone."""


class GuardedConnector(aiohttp.TCPConnector):
    """Guards each connection, and lends none again that changed while it idled."""

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        while True:
            connection = await super().connect(*args, **kwargs)
            transport = connection.transport
            if transport is None:  # lost again; aiohttp raises as it writes
                return connection
            protocol = transport.get_protocol()
            guard = protocol if isinstance(protocol, ResponseGuard) else ResponseGuard(transport)
            if guard.uses == 0 or not guard.is_spent:
                break
            transport.abort()
            connection.close()
        guard.uses += 1
        guard.serves_once = serves_once.get()
        current_use.set(Use(guard, guard.uses))
        guard.await_request()
        return connection


def _length_of_first(data: bytes) -> int:
    """Find where the first final response ends, by as few prefixes as it takes."""

    def is_whole(size: int) -> bool:
        framing = Framing()
        framing.expect()
        framing.feed(data[:size])
        return not framing.is_due

    return bisect_left(range(len(data)), x=True, key=is_whole)
