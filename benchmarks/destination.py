"""Small servers: the bare endpoint to compare with, and a sink.

`python -m benchmarks.destination bare PORT`: Starlette on plain uvicorn; answers 204 to a body.
`python -m benchmarks.destination page PORT BYTES`: Starlette answers a page of that size.
`python -m benchmarks.destination sink PORT [FILE [SECONDS]]`: answers 200 after some seconds, by
default at once, and logs requests, with times, in FILE.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.core.config_values import Address, Duration
from relay.server.connection_limit import PUBLIC_MAX, ConnectionLimit
from relay.server.listener import Listener


class Sink:
    """Counts what it is sent; `GET /` tells the number."""

    def __init__(self, file: Path | None, wait_s: float = 0) -> None:
        self._file = file
        self._wait_s = wait_s
        self._received: list[tuple[str, int]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await PlainTextResponse(str(len(self._received)))(scope, receive, send)
            return
        await receive()
        ids = [value.decode() for name, value in scope["headers"] if name == b"webhook-id"]
        self._received.append((ids[0] if ids else "", time.monotonic_ns()))
        if self._wait_s:
            await asyncio.sleep(self._wait_s)
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        if self._file is not None:
            lines = (f"{event_id} {at_ns}\n" for event_id, at_ns in self._received)
            self._file.write_text("".join(lines), encoding="utf-8")


async def _hook(request: Request) -> Response:
    await request.body()
    return Response(status_code=204)


async def _root(_: Request) -> Response:
    return Response(status_code=204)


def _bare() -> Starlette:
    return Starlette(routes=[Route("/webhooks", _hook, methods=["POST"]), Route("/", _root)])


def _page(size: int) -> Starlette:
    text = "x" * size

    async def page(_: Request) -> Response:
        return HTMLResponse(text)

    return Starlette(routes=[Route("/", page)])


async def _serve(app: ASGIApp, port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    # As the relay's own listeners are set up, so that a page differs in its application alone.
    listener = Listener(
        app,
        Address(f"127.0.0.1:{port}"),
        grace=Duration.parse("1s"),
        limit=ConnectionLimit(PUBLIC_MAX),
    )
    await listener.start()
    await stop.wait()
    await listener.stop()


def main() -> None:
    kind, port, *rest = sys.argv[1:]
    if kind == "bare":
        # What `uvicorn --loop uvloop --http httptools --no-access-log` runs.
        uvicorn.run(
            _bare(),
            port=int(port),
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
        )
        return
    if kind == "page":
        uvloop.run(_serve(_page(int(rest[0])), int(port)))
        return
    sink = Sink(Path(rest[0]) if rest else None, float(rest[1]) if len(rest) > 1 else 0)
    uvloop.run(_serve(sink, int(port)))
    sink.close()


if __name__ == "__main__":
    main()
