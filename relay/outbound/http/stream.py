"""One connection that bytes of HTTP travel over: httpcore's streams, on asyncio's transports.

Those that come with httpcore, over anyio, take a quarter of an exchange's time for themselves.
"""

import asyncio
import fcntl
import select
import socket
import ssl
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpcore

from relay.outbound.http.framing import Framing

_UNREAD, _UNCONFIRMED = termios.FIONREAD, termios.TIOCOUTQ
"""As tcp(7) has them, SIOCINQ and SIOCOUTQ."""

RECEIVED_MAX = 256 * 1024
"""So much at most is taken from a far end before it is read, and what comes with it."""


class Unasked(httpcore.RemoteProtocolError):
    """The far end sent an answer before it had the request."""


class Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection, on which a request is written before its answer is read.

    What is written leaves with the next read: head and body of a request in one piece.
    Bytes that arrive while no answer is due end the connection, and are never read.
    """

    def __init__(self, sock: socket.socket) -> None:
        # CPython 3.11 makes a system call whenever it is asked which loop runs.
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | select.POLLOUT)
        self._idle = [(sock.fileno(), select.POLLOUT)]
        self._transport: asyncio.Transport | None = None
        self._attaching = self._is_tls = False
        self._unsent: list[bytes] = []
        self._received = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._framing = Framing()
        self._fault: httpcore.RemoteProtocolError | None = None
        self._reading: asyncio.Future[None] | None = None

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  the base's own
    ) -> "Stream":
        try:
            with connecting():
                self._is_tls = True
                async with asyncio.timeout(timeout):
                    await self._attach(ssl=ssl_context, server_hostname=server_hostname)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109  the base's own
    ) -> None:
        self._unsent.append(buffer)

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109  the base's own
    ) -> bytes:
        """Return what has come, or b"" at the end.

        Raises ReadTimeout, ReadError, and RemoteProtocolError for bytes that answer no request.
        """
        await self._send()
        if not self._received and not self._ended:
            await self._wait(timeout)
        if not self._received and self._fault is not None:
            raise self._fault
        if not self._received and self._error is not None:
            raise httpcore.ReadError from self._error
        was_full = self._is_full
        taken = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if was_full and not self._is_full and self._transport is not None:
            self._transport.resume_reading()
        return taken

    async def aclose(self) -> None:
        self._ended = True
        if self._attaching:
            return
        if self._transport is None:
            self._sock.close()
        else:
            self._transport.abort()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._is_spent
        return None if self._transport is None else self._transport.get_extra_info(info)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        framing = self._framing
        if not framing.is_due or self._is_too_early:
            self._end_by(Unasked())
            return
        framing.received(data)
        if framing.is_flooded:
            self._end_by(httpcore.RemoteProtocolError("too many interim answers"))
            return
        if not framing.is_due and not framing.is_clean and self._transport is not None:
            # Surplus bytes: the next request needs another connection.
            self._transport.abort()
        self._received += data
        if self._is_full and self._transport is not None:
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self._ended = True
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._ended, self._error = None, True, exc
        self._tell()

    @property
    def _is_full(self) -> bool:
        return len(self._received) >= RECEIVED_MAX

    @property
    def _is_spent(self) -> bool:
        """Whether no further request may go out here; asked only while none is under way.

        While nothing is asked for, only the end can come. And a request that was answered before
        it was read leaves no room for the next where its rest is never taken.
        """
        return (
            self._ended
            or not self._framing.is_clean
            or bool(self._received)
            or self._poll.poll(0) != self._idle
        )

    @property
    def _is_too_early(self) -> bool:
        """Whether the far end sent these bytes before it had the whole request.

        TCP acknowledges received bytes together with whatever is sent, so unacknowledged bytes of
        the request prove it.
        The first answer on a connection may be early, because a server may refuse a request by
        its head; a later one may be a second answer to the previous request.
        """
        if self._framing.is_begun or self._framing.requests < 2 or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > 0 or _count(self._sock, _UNCONFIRMED) > 0

    def _end_by(self, fault: httpcore.RemoteProtocolError) -> None:
        self._fault, self._ended = fault, True
        if self._transport is not None:
            self._transport.abort()
        self._tell()

    async def _attach(self, **tls: Any) -> None:
        """Hand the socket over, which nobody may close before that is done.

        uvloop would close its number once more later on, when another may have it.
        """
        self._attaching = True
        try:
            await self._loop.create_connection(lambda: self, sock=self._sock, **tls)
        finally:
            self._attaching = False
        if self._ended:
            await self.aclose()

    async def _send(self) -> None:
        if self._transport is None and not self._ended:
            await self._attach()
        unsent, self._unsent = self._unsent, []
        if not unsent:
            return
        # Of TLS, the kernel may hold records that are no part of any answer.
        if not (self._ended or self._is_tls) and _count(self._sock, _UNREAD) > 0:
            self._end_by(Unasked())
            return
        self._framing.asked()
        # Where the far end has hung up, its answer may be there and tell why.
        if self._transport is not None:
            self._transport.writelines(unsent)

    async def _wait(self, timeout_s: float | None) -> None:
        """Until there is something to read, or never will be."""
        self._reading = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._give_up)
        try:
            await self._reading
        finally:
            if timer is not None:
                timer.cancel()

    def _tell(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _give_up(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_exception(httpcore.ReadTimeout())


@contextmanager
def connecting() -> Iterator[None]:
    """Raise what httpcore raises, with the cause behind it."""
    try:
        yield
    except TimeoutError as error:
        raise httpcore.ConnectTimeout from error
    except OSError as error:
        raise httpcore.ConnectError from error


def _count(sock: socket.socket, of: int) -> int:
    """Bytes that the kernel holds: not yet read, or not yet confirmed by the other side."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), of, bytes(4)))
    return int(count)
