"""A real HTTP server on loopback that remembers what arrives and answers as it is told."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

DEADLINE_S = 20.0


async def until(fact: Callable[[], bool], *, what: str) -> None:
    """Wait for a condition; fails with `what` after a deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def header(self) -> dict[str, str]:
        return dict(self.headers)


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        head = {"content-length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"HTTP/1.1 {self.status} Said\r\n{lines}\r\n".encode() + self.body


Script = Callable[[Request], Reply | bytes | None]
"""Bytes are sent as they are and the connection is closed; for None there is never an answer."""


class StubServer:
    """Reads requests one after another on each connection; `reply` may be changed at any time."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.reply: Script = lambda _: Reply()
        self.requests: list[Request] = []
        self.accepted = 0
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()
        self._gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def open(self) -> int:
        return len(self._open)

    def url(self, target: str = "/", *, host: str = "127.0.0.1") -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{host}:{self.port}{target}"

    async def listen(self) -> None:
        """Start, or start again on the same port."""
        self._gone = asyncio.Event()
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and drop those that are open; may be called twice."""
        if self._server is None:
            return
        self._gone.set()
        self._server.close()
        for writer in tuple(self._open):
            _abort(writer)
        await until(lambda: not self._open, what="the end of all connections")
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._gone.is_set():  # accepted just before the end
            _abort(writer)
            return
        self.accepted += 1
        self._open.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            _abort(writer)
            self._open.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read(reader)
        self.requests.append(request)
        reply = self.reply(request)
        if reply is None:
            await self._hang(reader)
            return False
        writer.write(reply if isinstance(reply, bytes) else reply.encode())
        await writer.drain()
        if isinstance(reply, bytes):
            writer.close()
            await writer.wait_closed()
        return not isinstance(reply, bytes)

    async def _hang(self, reader: asyncio.StreamReader) -> None:
        gone = asyncio.ensure_future(self._gone.wait())
        left = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({gone, left}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        left.cancel()


def _abort(writer: asyncio.StreamWriter) -> None:
    # A transport that closed itself once its buffer was sent cannot be aborted any more.
    with suppress(AttributeError):
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = [line.split(":", 1) for line in lines]
    headers = tuple((name.lower(), value.strip()) for name, value in pairs)
    length = int(dict(headers).get("content-length", "0"))
    return Request(method, target, headers, await reader.readexactly(length))
