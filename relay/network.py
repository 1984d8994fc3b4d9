"""How the bytes of HTTP travel: httpcore's streams, over asyncio's transports.

Those that come with httpcore, over anyio, take a quarter of an exchange's time for themselves.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpcore
from aiohappyeyeballs import AddrInfoType, start_connection

FALLBACK_S = 0.25
"""So long an address of a host has for itself before the next is tried beside it (RFC 8305, 5)."""

RECEIVED_MAX = 256 * 1024
"""So much at most is taken from a far end before it is read, and what comes with it."""


class Network(httpcore.AsyncNetworkBackend):
    """Connects by TCP, to whichever address of a host answers first."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the base's own
        local_address: str | None = None,  # noqa: ARG002  nobody sets one
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> "Stream":
        with _connecting():
            async with asyncio.timeout(timeout):
                addresses = _written_out(host, port) or await _found(host, port)
                return Stream(await start_connection(addresses, happy_eyeballs_delay=FALLBACK_S))


class Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection, on which a request is written before its answer is read.

    What is written leaves with the next read: head and body of a request in one piece.
    """

    def __init__(self, sock: socket.socket) -> None:
        # CPython 3.11 makes a system call whenever it is asked which loop runs.
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | select.POLLOUT)
        self._idle = [(sock.fileno(), select.POLLOUT)]
        self._transport: asyncio.Transport | None = None
        self._attaching = False
        self._unsent: list[bytes] = []
        self._received = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._reading: asyncio.Future[None] | None = None

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  the base's own
    ) -> "Stream":
        try:
            with _connecting():
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
        """Return what has come, or b"" at the end; raises ReadTimeout and ReadError."""
        await self._send()
        if not self._received and not self._ended:
            await self._wait(timeout)
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
        return self._ended or bool(self._received) or self._poll.poll(0) != self._idle

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
        # Where the far end has hung up, its answer may be there and tell why.
        if unsent and self._transport is not None:
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


def _written_out(host: str, port: int) -> Sequence[AddrInfoType]:
    """What needs no look-up, and so no thread for it."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return []


async def _found(host: str, port: int) -> Sequence[AddrInfoType]:
    # As bytes: of a str that is no name at all, Python makes a UnicodeError.
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)


@contextmanager
def _connecting() -> Iterator[None]:
    """Raise what httpcore raises, with the cause behind it."""
    try:
        yield
    except TimeoutError as error:
        raise httpcore.ConnectTimeout from error
    except OSError as error:
        raise httpcore.ConnectError from error
