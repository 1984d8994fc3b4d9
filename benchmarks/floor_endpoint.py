"""The least that an acknowledgement costs on the relay's libraries: signature, INSERT, fsync.

`python -m benchmarks.floor_endpoint PORT FILE` runs it on plain uvicorn. It parses no body, knows
no duplicate, checks no file and delivers nothing.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain
from typing import Protocol

import aiosqlite
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.rig import SECRET
from relay.core import signature

_GROUP_MAX = 64
_TOLERANCE_MS = 300_000
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE events (seq INTEGER PRIMARY KEY, received_at INTEGER NOT NULL, body BLOB NOT NULL);
"""
_ADD = "INSERT INTO events (received_at, body) VALUES "


class Endpoint:
    """Inserts what has arrived since the last commit in one statement, on aiosqlite's thread."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._waiting: list[tuple[tuple[int, bytes], asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with aiosqlite.connect(self._file, isolation_level=None) as self._connection:
            await self._connection.executescript(_SCHEMA)
            yield

    async def hook(self, request: Request) -> Response:
        body = await request.body()
        now_ms = time.time_ns() // 1_000_000
        signature.verify(
            [request.headers["service-signature"].encode()],
            body,
            secrets=[SECRET.encode()],
            now_s=now_ms // 1000,
            tolerance_ms=_TOLERANCE_MS,
        )
        await self._store((now_ms, body))
        return Response(status_code=202)

    async def root(self, _: Request) -> Response:
        return Response(status_code=204)

    async def _store(self, row: tuple[int, bytes]) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, stored))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await stored

    async def _flush(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:_GROUP_MAX], self._waiting[_GROUP_MAX:]
            values = tuple(chain.from_iterable(row for row, _ in group))
            await self._connection.execute(_ADD + ", ".join(["(?, ?)"] * len(group)), values)
            for _, stored in group:
                stored.set_result(None)
        self._flushing = None


class Served(Protocol):
    """What `serve` needs of an endpoint."""

    async def hook(self, request: Request) -> Response: ...

    async def root(self, _: Request) -> Response: ...

    def lifespan(self, _: Starlette) -> AbstractAsyncContextManager[None]: ...


def main() -> None:
    port, file = sys.argv[1:]
    serve(Endpoint(file), int(port))


def serve(endpoint: Served, port: int) -> None:
    """Run an endpoint on plain uvicorn."""
    app = Starlette(
        routes=[Route("/webhooks", endpoint.hook, methods=["POST"]), Route("/", endpoint.root)],
        lifespan=endpoint.lifespan,
    )
    uvicorn.run(
        app,
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
