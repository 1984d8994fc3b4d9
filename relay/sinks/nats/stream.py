"""The stream to a NATS server, which can be cut whatever the server does, and can insist on TLS.

The library's own stream closes once the server has taken everything. With 12 messages of 900 kB at
a frozen server, its `close` did not end in 10 s, and messages that had been given up arrived after
the thaw.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import ParseResult

import msgspec
from nats.aio.transport import Transport

from relay.core.errors import Misconfigured, Temporary

_INFO = b"INFO "


def not_nats() -> Temporary:
    return Temporary("what answers there is not a NATS server")


class _Info(msgspec.Struct, omit_defaults=True):
    """The fields of a server's INFO that the library needs."""

    auth_required: bool = False
    headers: bool = False
    max_payload: int | None = None
    nonce: str | None = None
    tls_available: bool = False
    tls_required: bool = False


class BoundedStream(Transport):
    """Read and written by the library, whose own stream closes once the server has taken all."""

    def __init__(self, *, needs_tls: bool) -> None:
        self._needs_tls = needs_tls
        self._plain: asyncio.StreamWriter | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.reader = asyncio.StreamReader()

    @property
    def is_secured(self) -> bool:
        return self._writer is not self._plain

    @property
    def is_closing(self) -> bool:
        return self._writer is None or self._writer.is_closing()

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        async with asyncio.timeout(connect_timeout):
            self.reader, self._writer = await asyncio.open_connection(
                uri.hostname, uri.port, limit=buffer_size
            )
        self._plain = self._writer

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        if self._plain is None:
            raise ConnectionError
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        host = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport: Any = await loop.start_tls(
                self._plain.transport, protocol, ssl_context, server_hostname=host
            )
        self.reader = reader
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def readline(self) -> bytes:
        """Read one of the server's first lines; where TLS is needed, make its INFO ask for it.

        The library leaves that to the server, or to an impostor, and would send the password.
        It trusts the types of an INFO, too.
        """
        try:
            line = await self.reader.readline()
            if _INFO not in line:
                return line
            info = msgspec.json.decode(line.partition(_INFO)[2], type=_Info)
        except (ValueError, RecursionError):  # msgspec's are ValueErrors, that of a long line too
            raise not_nats() from None
        if self._needs_tls and not self.is_secured:
            if not info.tls_required and not info.tls_available:
                raise Misconfigured("the server offers no TLS")
            info.tls_required = True
        return _INFO + msgspec.json.encode(info) + b"\r\n"

    async def read(self, buffer_size: int) -> bytes:
        return await self.reader.read(buffer_size)

    def at_eof(self) -> bool:
        return self.reader.at_eof()

    def write(self, payload: bytes) -> None:
        if self._writer is not None and not self.is_closing:
            self._writer.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def drain(self) -> None:
        if self._writer is not None and not self.is_closing:
            with suppress(OSError):  # reading fails too, and the library ends the connection
                await self._writer.drain()

    def close(self) -> None:
        """Cut the connection: everything unsent was given up, and must not arrive later."""
        if self._writer is not None:
            # In CPython 3.11.2 a TLS transport that is closed already has nothing to abort.
            with suppress(AttributeError):
                self._writer.transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)  # a stream that is cut is closed once the loop turns

    def __bool__(self) -> bool:
        """Always true, or the library would make a stream of its own."""
        return True
