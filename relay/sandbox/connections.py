"""The sandbox's HTTP server: uvicorn's protocol, whose connections the app can close unanswered."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

DRAIN_S = 5.0
"""Time that requests under way have when the server stops."""

BACKLOG = 2048
_DRAIN_POLL_S = 0.01
_HANG_UP = "sandbox.hang_up"


class _Connection(HttpToolsProtocol):
    """A connection that its requests can close, by the state in their scope."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState) -> None:
        self.shared: dict[str, object] = {}
        super().__init__(config=config, server_state=server_state, app_state=self.shared)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.shared[_HANG_UP] = transport.abort
        super().connection_made(transport)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, bound: socket.socket) -> AsyncIterator[None]:
    """Serve an app on a bound socket until the block ends; no signal is taken."""
    config = uvicorn.Config(
        app, ws="none", log_config=None, access_log=False, server_header=False, proxy_headers=False
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(config, state), sock=bound, backlog=BACKLOG
    )
    try:
        yield
    finally:
        server.close()
        await _drain(state)
        await server.wait_closed()


async def hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection of a request without an answer."""
    close = scope.get("state", {}).get(_HANG_UP)
    if close is None:
        raise ConnectionResetError("the sandbox is down")
    close()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drain(state: ServerState) -> None:
    """Let requests under way finish, and cut off those that last."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while state.connections:
                for connection in tuple(state.connections):
                    connection.shutdown()
                await asyncio.sleep(_DRAIN_POLL_S)
    for connection in tuple(state.connections):
        connection.transport.abort()
