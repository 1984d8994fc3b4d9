"""One HTTP listener: its socket, its server's settings, and how it stops without loss."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from relay import endpoint, log
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

QUIET_LOOKS = 25
RETIRE_LOOKS = 200
"""Idle connections are kept until nothing was asked on any for 0.25 s, and for 2 s at most."""

_SACKED = struct.Struct("=28xI")


class Listener:
    """Serves an ASGI app on one address; takes no signals, so several can live in one process."""

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        *,
        grace: Duration,
        handed_over: socket.socket | None = None,
        unread: Callable[[], None] = lambda: None,
    ) -> None:
        """What was handed over listens already and is served in place of the address.

        `unread` is told whenever what is no HTTP is answered with 400, without the app.
        """
        self._address = address if handed_over is None else endpoint.name(handed_over.getsockname())
        self._handed_over = handed_over
        self.grace = grace
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast("type[Connection]", partial(Connection, unread=unread)),
                loop="uvloop",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG if handed_over is None else _queue_length(handed_over),
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._socket: socket.socket | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and serve. Raises ListenFailed."""
        bound = self._handed_over or bind(self._address)
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

    async def retire(self) -> None:
        """Take no more connections, and answer as usual what is still asked on the open ones.

        Each closes behind its next answer, which says so: whoever keeps connections to us sends a
        request on one at any moment, and does not repeat a POST that met its end.
        Those on which nothing is asked are left open, for `stop`.
        """
        if self._socket is not None:
            await self._server.retire(sockets=[self._socket])

    async def stop(self) -> None:
        """Take no more connections and let requests in flight finish within the grace.

        Idle connections close at once; after this returns nothing is served.
        The queue of a socket that was handed over lives on with whoever keeps it open.
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
    def is_handed_over(self) -> bool:
        """Whether connections wait for a successor, because somebody else keeps the socket open."""
        return self._handed_over is not None

    @property
    def port(self) -> int:
        """The port that is listened on, also where the address says 0."""
        if self._socket is None:
            raise RuntimeError("the listener has not been started")
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where to reach it from the same machine if its address is a wildcard."""
        return endpoint.url(self._address, self.port)


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
        self._close(sockets or ())
        # uvicorn tells nobody when the last one is gone.
        while self.server_state.connections or self.server_state.tasks:
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await asyncio.sleep(DRAIN_LOOK_S)
        for server in self.servers:
            await server.wait_closed()

    async def retire(self, sockets: Iterable[socket.socket]) -> None:
        """Stop accepting, and let connections end by themselves while they are in use."""
        self._close(sockets)
        state = self.server_state
        answered, quiet = state.total_requests, 0
        for _ in range(RETIRE_LOOKS):
            # Also those that were accepted last, and are made only now.
            for connection in state.connections:
                cast("Connection", connection).retire()
            await asyncio.sleep(DRAIN_LOOK_S)
            quiet = 0 if state.tasks or state.total_requests != answered else quiet + 1
            answered = state.total_requests
            if quiet >= QUIET_LOOKS or not (state.connections or state.tasks):
                return

    def _close(self, sockets: Iterable[socket.socket]) -> None:
        for server in self.servers:
            server.close()
        for bound in sockets:
            bound.close()

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


def _queue_length(listening: socket.socket) -> int:
    """What whoever made the socket has set, for the server listens on it once more.

    Of a listening socket, Linux tells it in tcp_info as tcpi_sacked.
    """
    try:
        info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SACKED.size)
        (length,) = _SACKED.unpack(info)
    except (OSError, struct.error):
        return BACKLOG
    return int(length)


def bind(address: str) -> socket.socket:
    """Make the listening socket. Raises ListenFailed."""
    try:
        host, port = endpoint.parts(address)
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
