"""One HTTP listener: its socket, its server's settings, and how it stops without loss."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from relay import log
from relay.connection import Connection
from relay.errors import ListenFailed
from relay.settings import Duration

BACKLOG = 2048
"""Connections that the kernel holds for us; it caps this at net.core.somaxconn."""

KEEP_ALIVE_S = 130
"""Longer than reverse proxies keep idle connections to us (nginx 60 s, Traefik 90 s, Caddy 120 s).

So the proxy closes first, and no POST of the sender meets a connection that we are just closing.
"""


DRAIN_LOOK_S = 0.01
PORT_MAX = 65535


class Listener:
    """Serves an ASGI app on one address; takes no signals, so several can live in one process."""

    def __init__(self, app: ASGIApp, address: str, *, grace: Duration) -> None:
        self._address = address
        self.grace = grace
        self._server = _Server(
            uvicorn.Config(
                app,
                http=Connection,
                loop="uvloop",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._socket: socket.socket | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and serve. Raises ListenFailed."""
        bound = bind(self._address)
        self._server.load()
        await self._server.on_tick(0)
        starting = asyncio.create_task(self._server.startup(sockets=[bound]))
        try:
            await asyncio.shield(starting)
        finally:
            # Cancelled or not: it ends in the loop's next turn, and leaves what `stop` can close.
            await starting
            self._socket = bound
            self._ticking = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        """Take no more connections and let requests in flight finish within the grace.

        Idle connections close at once; after this returns nothing is served.
        """
        if self._socket is None or self._ticking is None:
            return
        bound, self._socket = self._socket, None
        self._ticking.cancel()
        try:
            async with asyncio.timeout(self.grace.seconds):
                await self._server.shutdown(sockets=[bound])
        except TimeoutError:
            await self._server.abort()

    @property
    def port(self) -> int:
        """The port that is listened on, also where the address says 0."""
        if self._socket is None:
            raise RuntimeError("the listener has not been started")
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where to reach it from the same machine if its address is a wildcard."""
        return local_url(self._address, self.port)


class _Server(uvicorn.Server):
    """Driven by us, step by step; `serve` would take the signals and raise them again."""

    def load(self) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Renew the Date header once a second, rather than wake ten times for it."""
        while True:
            await asyncio.sleep(1)
            await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, close what idles, and wait for what does not, however long.

        In place of uvicorn's, which answers what outlives its limit with a 500.
        """
        for server in self.servers:
            server.close()
        for bound in sockets or ():
            bound.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        # uvicorn tells nobody when the last one is gone.
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_LOOK_S)
        for server in self.servers:
            await server.wait_closed()

    async def abort(self) -> None:
        """Cut off what outlived the grace, unanswered: the sender will try again elsewhere."""
        state = self.server_state
        log.get().warning("listener.cut_off", count=len(state.connections))
        for connection in list(state.connections):
            connection.transport.abort()
        # The connections learn of it in the loop's next turn; before it, a 500 would be sent.
        await asyncio.sleep(0)
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def split_address(address: str) -> tuple[str, int]:
    """Read `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080` or `:8080` (every address).

    Raises ValueError.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError('expected an address such as "127.0.0.1:8080" or "[::1]:8080"')
    if ":" in host and not bracketed:
        raise ValueError('an IPv6 address stands in brackets: "[::1]:8080"')
    return host[1:-1] if bracketed else host, int(port)


def local_url(address: str, port: int | None = None) -> str:
    """Where an address is reached from the same machine; `port` stands in for its own."""
    host, own = split_address(address)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{own if port is None else port}"


def bind(address: str) -> socket.socket:
    """Make the listening socket. Raises ListenFailed."""
    try:
        host, port = split_address(address)
        infos = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
        family, kind, protocol, _, where = infos[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:
        raise ListenFailed(address, _cause(error)) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ListenFailed(address, _cause(error)) from error
    return bound


def _cause(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, socket.gaierror) or error.errno is None:
        return "no such host"
    return os.strerror(error.errno)
