"""A sender for tests: requests byte by byte over a connection, and the answers to them."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Self

import orjson

from relay.core import signature

SECRET = "the-secret-of-the-tests"
PATH = "/webhooks"
PATIENCE_S = 5.0

ALLOWED = frozenset({200, 202, 400, 401, 404, 405, 408, 413, 431, 503, 505})
"""Every status that a caller may ever see; 400 and 505 are for what is not HTTP of version 1."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return orjson.loads(self.body)


class Caller:
    """One connection; whatever is answered on it is one of the allowed statuses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def leave(self) -> None:
        self._writer.close()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def end(self) -> None:
        """Say that nothing more will be written, and go on to read."""
        self._writer.write_eof()

    async def flush(self) -> None:
        """Wait until the relay's side has taken nearly all that was written."""
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        self.write(data)
        return await self.answer(bodiless=bodiless)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one answer; `bodiless` is for what HEAD is told."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head[:-4].split("\r\n")
            status = int(first.split(" ")[1])
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = 0 if bodiless else int(headers.get("content-length", "0"))
            body = await self._reader.readexactly(length)
            if "content-length" not in headers and status not in (100, 204):
                body = await self._reader.read()
        assert status in ALLOWED | {100}, first
        assert "location" not in headers
        return Answer(status, headers, body)

    async def is_closed(self) -> bool:
        """Whether the relay hangs up within the patience, and has nothing more to say."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._reader.read() == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def now_s() -> int:
    return int(time.time())


def signed(body: bytes, *, secret: str = SECRET, at_s: int | None = None) -> str:
    """The header value that the sender would make now, or at another time."""
    at_s = now_s() if at_s is None else at_s
    return signature.header(secret.encode(), now_s=at_s, body=body)


def post(
    body: bytes, *header: tuple[str, str | bytes], target: str = PATH, sign: bool = True
) -> bytes:
    """A whole request; signed as the sender would do it unless told otherwise."""
    lines = [("Host", "relay"), ("Content-Length", str(len(body))), *header]
    if sign:
        lines.append(("Service-Signature", signed(body)))
    return head("POST", target, *lines) + body


def head(method: str, target: str, *header: tuple[str, str | bytes]) -> bytes:
    """A request's head, exactly as given."""
    lines = [
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
        for name, value in header
    ]
    return b"\r\n".join([f"{method} {target} HTTP/1.1".encode(), *lines, b"", b""])
