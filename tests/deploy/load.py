"""A load over restarts, with acknowledged events and other responses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.guarantees.process import http_client
from tests.guarantees.traffic import lead, post

CALLERS = 6
PAUSE_S = 0.005


class Load:
    """Callers that post one event after the other."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._count = 0
        self.acknowledged: set[str] = set()
        self.others: list[str] = []
        self.slowest_s = 0.0

    def has_acknowledged(self, count: int) -> bool:
        return len(self.acknowledged) >= count

    async def _post(self, client: httpx.AsyncClient) -> None:
        self._count += 1
        event_id = f"evt_{self._count:06}"
        started_s = time.monotonic()
        try:
            answer = await post(self._url, lead(event_id), client=client)
        except httpx.HTTPError as error:
            self.others.append(f"{event_id}: {error!r}")
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
        if answer.status_code == httpx.codes.ACCEPTED:
            self.acknowledged.add(event_id)
        else:
            self.others.append(f"{event_id}: {answer.status_code}")

    async def on_one_connection(self, stop: asyncio.Event) -> None:
        async with http_client() as client:
            while not stop.is_set():
                await self._post(client)
                await asyncio.sleep(PAUSE_S)

    async def on_many_connections(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with http_client() as client:
                await self._post(client)
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def under_load(load: Load, way: str) -> AsyncIterator[None]:
    stop = asyncio.Event()
    call = getattr(load, way)
    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(call(stop))
        try:
            yield
        finally:
            stop.set()
