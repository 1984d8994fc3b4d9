"""Pages of a test's own, on loopback, by the server that the relay uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.ports import free_port


class _Server(uvicorn.Server):
    """Leaves the tests' signal handlers alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Served:
    """Pages that are being served."""

    port: int

    def url(self, path: str = "/", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler], *, port: int | None = None
) -> AsyncIterator[Served]:
    """Serve each path by its handler, GET and POST, until the end; streams are cut off then."""
    routes = [Route(path, each, methods=["GET", "POST"]) for path, each in handlers.items()]
    port = port or free_port()
    server = _Server(
        uvicorn.Config(
            Starlette(routes=routes),
            host="127.0.0.1",
            port=port,
            lifespan="off",
            log_config=None,
        )
    )
    task = asyncio.create_task(server.serve())
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    try:
        yield Served(port)
    finally:
        server.should_exit = True
        # A graceful end would wait for the streams of open pages, which also come back meanwhile.
        while not task.done():
            for stream in tuple(server.server_state.tasks):
                stream.cancel()
            await asyncio.sleep(0.01)
        await task
