"""The stream to a NATS server, which can be cut whatever the server does, and can insist on TLS."""

import asyncio
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import ParseResult

import msgspec
from nats.aio.transport import Transport

from relay.core.errors import Misconfigured

_INFO = b"INFO "


class Stream(Transport):
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
        """
        line = await self.reader.readline()
        if not self._needs_tls or self.is_secured:
            return line
        try:
            info = msgspec.json.decode(line.partition(_INFO)[2], type=dict[str, Any])
        except msgspec.DecodeError:
            raise ConnectionError from None
        if not info.get("tls_required") and not info.get("tls_available"):
            raise Misconfigured("the server offers no TLS")
        return _INFO + msgspec.json.encode(info | {"tls_required": True}) + b"\r\n"

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
