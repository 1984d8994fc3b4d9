"""One HTTP connection: timeouts, refusals, and a close that never cuts off a response.

The connection parses each request once and passes it on, as plain HTTP/1.1, to uvicorn's protocol.
"""

import asyncio
import logging
from collections.abc import Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from relay.server.connection_limit import ConnectionLimit
from relay.server.lingering import Lingering, unread

HEAD_TIMEOUT_S = 10.0
"""Request-head timeout, from the connection's start or the head's first byte.

uvicorn has none, and a slow client would hold a file descriptor for ever.
"""

HEAD_MAX = 64 * 1024
"""Maximum size of a request head, in bytes; may be exceeded by one read.

The parser has none, and copies a whole line with each piece of it, so that a few strangers could
delay every acknowledgement.
"""

PIPELINED_MAX = 64
"""Requests of one connection that wait for their responses; what follows is not parsed yet.

uvicorn keeps kilobytes for each, and a read may hold thousands.
"""

PIECE_BYTES = 4096
"""Bytes that are parsed before the requests in them are counted."""

STALL_TIMEOUT_S = 60.0
"""Time in which a client has to read some of a response that waits for it."""

_STATE = "relay.connection"
_KEEP = "relay.keep"
_LOG = logging.getLogger(__name__)


class _Unsupported(Exception):
    """A head that asks for another major version, or for a tunnel."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def keep(scope: Scope) -> None:
    """Never evict the connection while this request lasts, even if its client reads slowly."""
    if (connection := scope.get("state", {}).get(_KEEP)) is not None:
        connection.is_kept = True


class Exchanges:
    """The ASGI app around a listener's app: tells each connection when its response is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """Sent with every response."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the requests under way."""
        self.completed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpProtocol = scope["state"].pop(_STATE)
        scope["state"][_KEEP] = connection
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


class HttpProtocol(asyncio.Protocol):
    """Times out slow heads and the rest of refused bodies, and refuses anything but HTTP/1.

    Requests that were complete before a fault are answered in order.
    Offers to upgrade are ignored (RFC 9110, 7.8), and trailers are dropped: signatures and
    addresses count only in a request's head.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        exchanges: Exchanges,
        *,
        connections: set["HttpProtocol"],
        not_http: Callable[[int], None],
        limit: ConnectionLimit,
    ) -> None:
        """`not_http` is called with the status of each response that the app did not make."""
        self._exchanges = exchanges
        self._connections = connections
        self._not_http = not_http
        self._limit = limit
        make = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)
        self._server = make(config=config, server_state=ServerState(), app_state={_STATE: self})
        self.loop = asyncio.get_running_loop()
        self._keep_alive_s = config.timeout_keep_alive
        self._timeout: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._held = b""
        """Received, but not parsed yet; meanwhile nothing is read."""
        self._unused = 0
        """Bytes received since the last complete head or piece of a body."""
        self._due = 0
        """Requests, also incomplete ones, whose response is not complete."""
        self._in_head = False
        self._in_body = False
        self._deaf = False
        self._retiring = False
        self.is_kept = False
        """Whether the request under way is that of an operator."""
        self._parsed: list[bytes] = []
        self._parser = self._new_parser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lingering = Lingering(cast("asyncio.Transport", transport), self._may_have_more)
        self.transport = cast("asyncio.Transport", self._lingering)
        self._connections.add(self)
        self._server.connection_made(self.transport)
        peer = transport.get_extra_info("peername")
        self._limit.enter(self, peer[0] if peer else "")
        self._start_timeout(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        self._cancel_stall()
        self._connections.discard(self)
        self._limit.leave(self)
        self._server.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stall = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)
        self._server.pause_writing()

    def resume_writing(self) -> None:
        self._cancel_stall()
        self._server.resume_writing()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def data_received(self, data: bytes) -> None:
        if len(data) <= PIECE_BYTES and self._due < PIPELINED_MAX:
            self._receive(data)
        else:
            self._held = data
            self._receive_held()

    def _receive_held(self) -> None:
        while self._held and self._due < PIPELINED_MAX:
            piece, self._held = self._held[:PIECE_BYTES], self._held[PIECE_BYTES:]
            self._receive(piece)
        self._lingering.hold(is_held=bool(self._held))

    def _receive(self, data: bytes) -> None:
        # A request behind the last response would never be answered.
        if self._deaf or self.transport.is_closing():
            return
        self._unused += len(data)
        refusal = self._parse(data)
        parsed, self._parsed = self._parsed, []
        if parsed:
            self._server.data_received(b"".join(parsed))
        if refusal is None and self._unused > HEAD_MAX:
            refusal = HTTPStatus.BAD_REQUEST, "Request head too large."
        if refusal is not None:
            self._refuse(*refusal)
        # Never while a response is due: the close would cut it off.
        elif not self._due:
            is_under_way = self._in_head or self._in_body
            # uvicorn's own timeout of idle connections ends with the body of an answered request.
            self._start_timeout(HEAD_TIMEOUT_S if is_under_way else self._keep_alive_s)

    def eof_received(self) -> bool:
        """A sender may half-close and still wait for its response; True keeps our side open."""
        self._deaf = True
        return self._owes_response()

    def retire(self) -> None:
        """Close after the next response, whether it is due or to come."""
        self._retiring = True

    def shutdown(self) -> None:
        """Close at once if idle; a request that has arrived, read or not, is answered first."""
        self.retire()
        if self._is_idle():
            self.transport.close()

    def evict(self) -> bool:
        """Close at once if only the client is waited for; returns whether it did."""
        evictable = self._is_idle() or (self._waits_for_client() and not self.is_kept)
        if evictable:
            # A close would wait for a client that does not read its last response.
            self.transport.abort()
        return evictable

    def closes_after_response(self) -> bool:
        """Whether the response that begins now is the connection's last."""
        return (self._deaf or self._retiring) and self._due <= 1 + self._in_body

    def response_complete(self) -> None:
        self._due -= 1
        self.is_kept = False
        if self._held and self._due < PIPELINED_MAX // 2:
            self.loop.call_soon(self._receive_held)
        if self._deaf or self._retiring:
            # uvicorn may still have to respond to a failure of the app.
            self.loop.call_soon(self._close_when_done)

    def _close_when_done(self) -> None:
        if not self._owes_response():
            self.transport.close()

    def _is_idle(self) -> bool:
        return not (self._due or self._held or unread(self.transport))

    def _waits_for_client(self) -> bool:
        """Whether the client has not sent the rest of a body, or does not read its responses."""
        return (self._in_body and not self._owes_response()) or self._stall is not None

    def _owes_response(self) -> bool:
        """Whether a complete request waits for its response."""
        return self._due > self._in_body

    def _may_have_more(self) -> bool:
        """Whether the sender may still be sending a refused body or head."""
        is_amid = (self._in_body and not self._due) or self._unused > HEAD_MAX
        return is_amid or bool(self._held)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # `on_headers_complete` checks versions.
        parser.set_dangerous_leniencies(lenient_version=True)
        return parser

    def _parse(self, data: bytes | memoryview) -> tuple[HTTPStatus, str] | None:
        """Parse into `_parsed`; return the status and text of a refusal."""
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = memoryview(data)[upgrade.args[0] :]
                    self._ignore_upgrade()
                else:
                    return None
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Unsupported):
                return cause.status, str(cause)
            if self._is_http_2():
                status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
                return status, status.phrase
            return HTTPStatus.BAD_REQUEST, "Invalid HTTP request received."

    def _is_http_2(self) -> bool:
        """Whether the head is HTTP/2's preface, which the parser takes for a fault."""
        return self._parser.get_method() == b"PRI" and self._parser.get_http_version() == "2.0"

    def _ignore_upgrade(self) -> None:
        """Parse the head again without the offer, after which the parser would read no body."""
        head = self._head([each for each in self._headers if each[0].lower() != b"upgrade"])
        self._parser = self._new_parser()
        self._parser.feed_data(head)

    def _head(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        version = b"1.0" if self._parser.get_http_version() == "1.0" else b"1.1"
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % each for each in headers]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Respond without the app, then close."""
        _LOG.warning(text)
        self._deaf = True
        if self._owes_response():
            return
        # Within a body, the app has the request and counts it.
        if not self._due:
            self._not_http(status)
        headers = [
            *self._exchanges.headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
            (b"connection", b"close"),
        ]
        lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
        lines += [b"%b: %b" % each for each in headers]
        self.transport.write(b"\r\n".join([*lines, b"", text.encode()]))
        self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come within the body.
        if not self._in_body:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._parser.get_http_version()[0] != "1":
            raise _Unsupported(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                raise _Unsupported(HTTPStatus.BAD_REQUEST)
            return
        if not self._url.isascii() or httptools.parse_url(self._url).path is None:
            raise ValueError("no path")
        self._unused = 0
        self._in_head = False
        self._cancel_timeout()
        self._limit.used(self)
        self._due += 1
        self._in_body = True
        self._is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in self._headers)
        self._parsed.append(self._head(self._headers))

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._parsed.append(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def on_message_complete(self) -> None:
        # After an offer to upgrade the parser ends the request; `_ignore_upgrade` parses it again.
        if self._parser.should_upgrade():
            return
        self._in_body = False
        self._cancel_timeout()
        if self._is_chunked:
            self._parsed.append(b"0\r\n\r\n")
        # A trailer can set `Connection: close` too.
        if not self._parser.should_keep_alive():
            self._deaf = True

    def _start_timeout(self, seconds: float) -> None:
        """Close after this time, or when an earlier timeout ends."""
        at_s = self.loop.time() + seconds
        if self._timeout is not None and self._timeout.when() <= at_s:
            return
        self._cancel_timeout()
        self._timeout = self.loop.call_at(at_s, self.transport.close)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
