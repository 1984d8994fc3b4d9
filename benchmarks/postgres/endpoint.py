"""What the relay is compared with: it commits each event, with its deliveries, before it answers.

`python -m benchmarks.postgres.endpoint PORT DSN SCHEMA SINK...` runs it on plain uvicorn. It checks
no signature, answers a duplicate like a new event, and delivers nothing.
"""

import asyncio
import hashlib
import sys
import time
from typing import NamedTuple

import orjson
import psycopg
import uvicorn
from psycopg import sql
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_GROUP_MAX = 256
_ADD = """
WITH fresh AS (
    INSERT INTO {events} (source, id, kind, received_at, digest, headers, body)
    SELECT 'main', * FROM unnest(
        %b::text[], %b::text[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[]
    )
    ON CONFLICT (source, id) DO NOTHING
    RETURNING seq, received_at
)
INSERT INTO {deliveries} (event, sink, status, due_at)
SELECT seq, sink, 'pending', received_at FROM fresh, unnest(%b::text[]) AS sinks (sink)
"""


class _Arrival(NamedTuple):
    id: str
    kind: str
    received_ms: int
    digest: bytes
    headers: bytes
    body: bytes


class Endpoint:
    """Inserts what has arrived since the last commit in one statement."""

    def __init__(self, dsn: str, schema: str, sinks: list[str]) -> None:
        self._dsn = dsn
        self._sinks = sinks
        self._add = sql.SQL(_ADD).format(
            events=sql.Identifier(schema, "events"), deliveries=sql.Identifier(schema, "deliveries")
        )
        self._connection: psycopg.AsyncConnection | None = None
        self._waiting: list[tuple[_Arrival, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def hook(self, request: Request) -> Response:
        body = await request.body()
        event = orjson.loads(body)
        headers = b"\n".join(b": ".join(pair) for pair in request.headers.raw)
        now_ms = time.time_ns() // 1_000_000
        digest = hashlib.sha256(body).digest()
        await self._store(_Arrival(event["id"], event["event"], now_ms, digest, headers, body))
        return Response(status_code=202)

    async def root(self, _: Request) -> Response:
        return Response(status_code=204)

    async def _store(self, arrival: _Arrival) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrival, stored))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await stored

    async def _flush(self) -> None:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, prepare_threshold=0
            )
        while self._waiting:
            group, self._waiting = self._waiting[:_GROUP_MAX], self._waiting[_GROUP_MAX:]
            columns = map(list, zip(*(arrival for arrival, _ in group), strict=True))
            await self._connection.execute(self._add, (*columns, self._sinks), binary=True)
            for _, stored in group:
                stored.set_result(None)
        self._flushing = None


def main() -> None:
    port, dsn, schema, *sinks = sys.argv[1:]
    endpoint = Endpoint(dsn, schema, sinks)
    routes = [Route("/webhooks", endpoint.hook, methods=["POST"]), Route("/", endpoint.root)]
    uvicorn.run(Starlette(routes=routes), port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
