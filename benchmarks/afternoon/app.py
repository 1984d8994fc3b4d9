"""What a team writes in an afternoon: it stores an event, and delivers it in the background.

`python -m benchmarks.afternoon.app PORT DATABASE SINK_URL` runs it on plain uvicorn. Nothing looks
for undelivered events after a restart.
"""

import asyncio
import hashlib
import hmac
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import aiosqlite
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.rig import SECRET

_TABLE = """
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY, body BLOB NOT NULL, delivered INTEGER NOT NULL DEFAULT 0
)
"""
_TRIES = 5


class _State(TypedDict):
    bridge: "Bridge"


class Bridge:
    """One connection to the database, and one client for the sink."""

    def __init__(self, db: aiosqlite.Connection, client: httpx.AsyncClient, url: str) -> None:
        self._db = db
        self._client = client
        self._url = url

    async def take(self, request: Request) -> Response:
        body = await request.body()
        if not _is_signed(request.headers.get("service-signature", ""), body):
            return Response(status_code=401)
        event_id = json.loads(body)["id"]
        try:
            await self._db.execute("INSERT INTO events (id, body) VALUES (?, ?)", (event_id, body))
            await self._db.commit()
        except sqlite3.IntegrityError:
            return Response(status_code=200)
        return Response(status_code=202, background=BackgroundTask(self._deliver, event_id, body))

    async def _deliver(self, event_id: str, body: bytes) -> None:
        for attempt in range(_TRIES):
            try:
                answer = await self._client.post(
                    self._url, content=body, headers={"webhook-id": event_id}
                )
                answer.raise_for_status()
            except httpx.HTTPError:
                await asyncio.sleep(2**attempt)
            else:
                await self._db.execute("UPDATE events SET delivered = 1 WHERE id = ?", (event_id,))
                await self._db.commit()
                return


def _is_signed(header: str, body: bytes) -> bool:
    fields = dict(part.partition("=")[::2] for part in header.split(","))
    signed = f"{fields.get('t')}.".encode() + body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, fields.get("v1", ""))


async def _hook(request: Request) -> Response:
    bridge: Bridge = request.state.bridge
    return await bridge.take(request)


async def _root(_: Request) -> Response:
    return Response(status_code=204)


def main() -> None:
    port, database, url = sys.argv[1:]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[_State]:
        async with aiosqlite.connect(database) as db, httpx.AsyncClient(trust_env=False) as client:
            await db.execute(_TABLE)
            yield {"bridge": Bridge(db, client, url)}

    routes = [Route("/webhooks", _hook, methods=["POST"]), Route("/", _root)]
    app = Starlette(routes=routes, lifespan=lifespan)
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
