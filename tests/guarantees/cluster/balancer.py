"""A load balancer that knows nothing of HTTP: connections go to the relays in turn."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Self

_CHUNK_BYTES = 1 << 16


class Balancer:
    """Passes each connection to the next port that takes it."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._turns = count()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhooks"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Only our own end cancels; asyncio's callback would report it as a fault.
            with suppress(asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            writer.close()
            self._connections.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await self._connect()
        if behind is None:
            return
        answers, requests = behind
        ways = (
            asyncio.ensure_future(_copy(reader, requests)),
            asyncio.ensure_future(_copy(answers, writer)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            requests.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        turn = next(self._turns)
        for step in range(len(self._ports)):
            port = self._ports[(turn + step) % len(self._ports)]
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
