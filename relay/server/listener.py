"""One HTTP listener: its socket, its server's settings, its requests, and a stop without loss."""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.core.config_values import Address, Duration
from relay.core.errors import ListenFailed
from relay.server.connection_limit import ConnectionLimit
from relay.server.http_protocol import STATE, HttpProtocol
from relay.telemetry import log

BACKLOG = 2048
"""Connections in the kernel's accept queue; capped at net.core.somaxconn."""

KEEP_ALIVE_S = 130
"""Longer than reverse proxies keep idle connections (nginx 60 s, Traefik 90 s, Caddy 120 s).

So the proxy closes first, and no POST meets a connection that we are about to close.
"""

ACCEPT_PAUSE_S = 0.1
"""Pause of accepting while there is no room, or no file descriptor."""

VERIFIED = "relay.verified"
"""Key of a function in a request's state, for the app to call once it knows who sent it.

What the connection holds then counts no longer as a stranger's, and does not give way to others.
"""

DRAIN_POLL_S = 0.01

QUIET_POLLS = 25
RETIRE_POLLS = 200
"""Idle connections are kept until none had a request for 0.25 s, and for 2 s at most."""


def keep(scope: Scope) -> None:
    """Never evict the connection while this request lasts, even if its client reads slowly."""
    connection: HttpProtocol | None = scope.get("state", {}).get(STATE)
    if connection is not None:
        connection.is_kept = True


class Exchanges:
    """The ASGI app around a listener's app: tells each connection when its response is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.headers: list[tuple[bytes, bytes]] = []
        """Sent with every response; changed in place."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the requests under way."""
        self.completed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpProtocol = scope["state"][STATE]
        scope["state"][VERIFIED] = connection.verified
        # With the loop, because looking for it costs a system call in CPython 3.11.
        task = cast("asyncio.Task[Any]", asyncio.current_task(connection.loop))
        self.tasks.add(task)

        complete = False

        async def observed_send(message: MutableMapping[str, Any]) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                headers = [*self.headers, *message.get("headers", ())]
                if connection.closes_after_response():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif not message.get("more_body"):
                # Before it is sent, because uvicorn may close the connection right after it.
                complete = True
                connection.response_complete()
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        finally:
            self.tasks.discard(task)
            self.completed += 1
            if not complete:
                connection.response_complete()


class Listener:
    """Serves an ASGI app on one address; takes no signals, so several can live in one process."""

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        *,
        grace: Duration,
        limit: ConnectionLimit,
        handed_over: socket.socket | None = None,
        not_http: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        """A socket that was handed over listens already, and is served in place of the address.

        `not_http` is called with status and client of each response that the app did not make.
        """
        self._address = address if handed_over is None else Address.of(handed_over.getsockname())
        self._handed_over = handed_over
        self.grace = grace
        self._limit = limit
        self._not_http = not_http
        self._exchanges = Exchanges(app)
        self._connections: set[HttpProtocol] = set()
        self._config = uvicorn.Config(
            self._exchanges,
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._socket: socket.socket | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._pausing: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bind and serve. Raises ListenFailed."""
        self._loop = asyncio.get_running_loop()
        self._socket = self._handed_over or bind(self._address)
        self._socket.settimeout(0)
        self._config.load()
        self._set_date()
        self._loop.add_reader(self._socket, self._accept, self._socket)

    async def retire(self) -> None:
        """Accept no further connections, and answer requests on the open ones as usual.

        Each closes after its next response, which says so: a proxy may send a request on one at any
        moment, and does not repeat a POST whose connection was closed.
        Idle ones stay open for `stop`.
        """
        self._close()
        exchanges = self._exchanges
        answered, quiet = exchanges.completed, 0
        for _ in range(RETIRE_POLLS):
            # Each time, because the last ones accepted are made only now.
            for connection in self._connections:
                connection.retire()
            await asyncio.sleep(DRAIN_POLL_S)
            quiet = 0 if exchanges.tasks or exchanges.completed != answered else quiet + 1
            answered = exchanges.completed
            if quiet >= QUIET_POLLS or not self._is_busy():
                return

    async def stop(self) -> None:
        """Accept no further connections, and let requests in flight finish within the grace.

        Idle connections close at once; nothing is served after this returns.
        A stop that was cancelled can be called again.
        The queue of a socket that was handed over stays with its owner.
        """
        self._close()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        try:
            async with asyncio.timeout(self.grace.seconds):
                await self._drain()
        except TimeoutError:
            await self._abort()

    @property
    def is_handed_over(self) -> bool:
        """Whether the socket stays open elsewhere, so that connections wait for a successor."""
        return self._handed_over is not None

    @property
    def port(self) -> int:
        """The port in use, also where the address says 0."""
        if self._socket is None:
            raise RuntimeError("the listener has not been started")
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """URL of the listener, from this machine where its address is a wildcard."""
        return self._address.url(self.port)

    def _accept(self, bound: socket.socket) -> bool:
        """Accept one connection per turn of the loop, so that requests are served in between.

        The loop's own server has no limit, and does not report a lack of file descriptors.
        Returns whether there was one.
        """
        if not self._limit.has_room():
            self._pause(bound)
            return False
        try:
            accepted, peer = bound.accept()
        except (BlockingIOError, ConnectionError):
            return False
        except OSError as error:
            self._limit.evict()
            self._limit.reached("files", message=os.strerror(error.errno or 0))
            self._pause(bound)
            return False
        if self._limit.admits(peer[0]):
            opening = self._loop.create_task(self._open(accepted))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        else:
            accepted.close()
        return True

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connection, accepted)
        except OSError:
            # The client has gone already.
            accepted.close()

    def _connection(self) -> HttpProtocol:
        return HttpProtocol(
            self._config,
            own_headers=self._exchanges.headers,
            connections=self._connections,
            not_http=self._not_http,
            limit=self._limit,
        )

    def _pause(self, bound: socket.socket) -> None:
        self._loop.remove_reader(bound)
        self._pausing = self._loop.call_later(
            ACCEPT_PAUSE_S, self._loop.add_reader, bound, self._accept, bound
        )

    def _close(self) -> None:
        """Stop accepting; may be called more than once."""
        bound, self._socket = self._socket, None
        if bound is None:
            return
        # Those that wait in the queue would be reset; that of an inherited socket stays.
        while not self.is_handed_over and self._accept(bound):
            pass
        if self._pausing is not None:
            self._pausing.cancel()
        self._loop.remove_reader(bound)
        bound.close()

    def _is_busy(self) -> bool:
        return bool(self._connections or self._exchanges.tasks or self._opening)

    def _set_date(self) -> None:
        self._ticking = self._loop.call_later(1, self._set_date)
        self._exchanges.headers[:] = [(b"date", formatdate(usegmt=True).encode())]

    async def _drain(self) -> None:
        """Close idle connections, and wait for the others without a limit.

        uvicorn's own shutdown answers a request that outlives its limit with a 500.
        """
        # uvicorn has no event for the last connection's end.
        while self._is_busy():
            for connection in list(self._connections):
                connection.shutdown()
            await asyncio.sleep(DRAIN_POLL_S)

    async def _abort(self) -> None:
        """Cut off requests that outlived the grace, unanswered: the sender will retry."""
        log.get().warning("listener.cut_off", count=len(self._connections))
        for connection in list(self._connections):
            connection.transport.abort()
        # The protocols see it in the loop's next turn; before that, a 500 would be sent.
        await asyncio.sleep(0)
        tasks = list(self._exchanges.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def bind(address: Address) -> socket.socket:
    """Return a listening socket; raises ListenFailed."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, _, _, _, where = infos[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        bound = socket.create_server(where, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenFailed(address, "no such host") from error
    except OSError as error:
        raise ListenFailed(address, os.strerror(error.errno or 0)) from error
    # For its connections: only uvloop sets it on each, and responses are written in pieces.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
