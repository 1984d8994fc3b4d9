"""One HTTP connection: timeouts, refusals, and a close that never cuts off a response.

The connection parses each request once and passes it on, as plain HTTP/1.1, to uvicorn's protocol,
which has no public way to limit heads, drop trailers, ignore offers to upgrade, or close after a
response. The second parse costs 4 to 7 % of an acknowledgement's processor time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from relay.server.connection_limit import UNCOUNTED_BYTES, ConnectionLimit
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

HEADERS_MAX = 100
"""Maximum number of headers of a request, as in Apache's default; proxies add a dozen.

A head of `HEAD_MAX` could have 15,000, and each takes a hundred times its bytes.
"""

REQUEST_BYTES = 4096
HEADER_BYTES = 384
"""What uvicorn and this module keep in memory for each, beside its text."""

PIPELINED_BYTES = 32 * 1024
"""What requests that wait for their responses may hold on one connection; what follows them is
not parsed yet.
"""

PIECE_BYTES = 128
"""Bytes that are parsed before the requests in them are counted, where they may be many."""

WRITE_BYTES = 8 * 1024
"""Of responses that a client does not read; then it gets no further ones."""

STALL_TIMEOUT_S = 60.0
"""Time in which a client has to read some of a response that waits for it."""

STATE = "relay.connection"
"""Key of the connection in a request's state."""

_FEW = 4
"""Requests that may come together without being counted, as nearly always."""

_TOO_MANY = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_LOG = logging.getLogger(__name__)


class _Unsupported(Exception):
    """A head that asks for another major version or for a tunnel, or has too many headers."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class HttpProtocol(asyncio.BufferedProtocol):
    """Times out slow heads and the rest of refused bodies, and refuses anything but HTTP/1.

    Requests that were complete before a fault are answered in order.
    Offers to upgrade are ignored (RFC 9110, 7.8), and trailers are dropped: signatures and
    addresses count only in a request's head.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        own_headers: Sequence[tuple[bytes, bytes]],
        connections: set["HttpProtocol"],
        not_http: Callable[[int, str], None],
        limit: ConnectionLimit,
    ) -> None:
        """`own_headers`, sent with every response, change in place.

        `not_http` is called with status and client of each response the app did not make.
        """
        self._own_headers = own_headers
        self._connections = connections
        self._not_http = not_http
        self._limit = limit
        # One for all connections of a listener, because each is read and parsed at once.
        self._buffer = limit.memory.buffer
        make = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)
        self._server = make(config=config, server_state=ServerState(), app_state={STATE: self})
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
        self._load = 0
        """What these hold, in bytes of memory."""
        self._is_counted = False
        """Whether the listener counts what this connection holds."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._in_body = False
        self._deaf = False
        self._retiring = False
        self.is_kept = False
        """Whether the request under way is that of an operator."""
        self._parsed: list[bytes] = []
        self._chunks: list[bytes] = []
        """Those of a chunked body that came together; they are passed on as one."""
        self._parser = self._new_parser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lingering = Lingering(cast("asyncio.Transport", transport), self._may_have_more)
        self.transport = cast("asyncio.Transport", self._lingering)
        self.transport.set_write_buffer_limits(WRITE_BYTES)
        self._connections.add(self)
        self._server.connection_made(self.transport)
        peer = transport.get_extra_info("peername")
        self._host = peer[0] if peer else ""
        self._limit.enter(self, self._host)
        self._start_timeout(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        self._cancel_stall()
        self._connections.discard(self)
        self._limit.leave(self)
        self._limit.memory.release(self)
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

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if self._held or data.count(b"HTTP/") > _FEW or not self._may_parse():
            self._held += data
            self._receive_held()
            return
        self._receive(data)
        # Most requests come whole, and hold little.
        if self._in_head or self._load > UNCOUNTED_BYTES or self._is_counted:
            self._count()

    def _receive_held(self) -> None:
        if self._held.count(b"HTTP/") <= _FEW and self._may_parse():
            piece, self._held = self._held, b""
            self._receive(piece)
        while self._held and self._may_parse():
            piece, self._held = self._held[:PIECE_BYTES], self._held[PIECE_BYTES:]
            self._receive(piece)
        self._lingering.hold(is_held=bool(self._held))
        self._count()

    def _may_parse(self) -> bool:
        """Whether more may be taken; a body has to come to its end if nothing else is due."""
        return self._load < PIPELINED_BYTES or not self._owes_response()

    def _count(self) -> None:
        """Have the listener count what this connection holds, if it is more than a little."""
        size = self._load + len(self._held)
        if self._in_head:
            size += self._unused + HEADER_BYTES * len(self._headers)
        if size > UNCOUNTED_BYTES and not self.transport.is_closing():
            if not self._is_counted:
                self._is_counted = True
                self._site = self._limit.site(self._host, self._forwarded())
            self._limit.memory.hold(self, self._site, size)
        elif self._is_counted:
            self._is_counted = False
            self._limit.memory.release(self)

    def _forwarded(self) -> str:
        values = [value for name, value in self._headers if name.lower() == b"x-forwarded-for"]
        return b",".join(values).decode("latin-1")

    def _receive(self, data: bytes) -> None:
        # A request behind the last response would never be answered.
        if self._deaf or self.transport.is_closing():
            return
        self._unused += len(data)
        refusal = self._parse(data)
        if self._chunks:
            self._join_chunks()
        parsed, self._parsed = self._parsed, []
        if parsed:
            self._server.data_received(b"".join(parsed))
        if refusal is None and self._unused > HEAD_MAX:
            refusal = HTTPStatus.BAD_REQUEST, "Request head too large."
        if refusal is None and self._in_head and len(self._headers) > HEADERS_MAX:
            refusal = _TOO_MANY, _TOO_MANY.phrase
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

    def give_way(self) -> bool:
        """Close at once, unless there is only a complete request, whose response comes soon."""
        gives_way = self._due != 1 or self._in_body or self._in_head or bool(self._held)
        if gives_way:
            self.transport.abort()
        return gives_way

    def verified(self) -> None:
        """Count none of the bytes received so far."""
        self._load = 0
        if self._is_counted:
            self._count()

    def closes_after_response(self) -> bool:
        """Whether the response that begins now is the connection's last."""
        is_last = self._deaf or self._retiring
        return (is_last and self._due <= 1 + self._in_body) or (
            self._in_body and self._misses_body()
        )

    def _misses_body(self) -> bool:
        """Whether the next response comes early, to a client that may leave the body out for it.

        It is one that waits for "100 Continue" (RFC 9110, 10.1.1). Its next request would be taken
        for the body. From others, the rest of the body is awaited.
        """
        return self._due == 1 and any(name.lower() == b"expect" for name, _ in self._headers)

    def response_complete(self) -> None:
        if self._in_body:
            self._deaf = self._deaf or self._misses_body()
        self._due -= 1
        self.is_kept = False
        if not self._due:
            self.verified()
        if self._held and self._may_parse():
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
        is_amid = self._in_body and not self._due
        is_refused = self._unused > HEAD_MAX or (self._in_head and self._deaf)
        return is_amid or is_refused or bool(self._held)

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
        version = b"1.1"
        if self._parser.get_http_version() == "1.0":
            version = b"1.0"
            # It knows no interim responses (RFC 9110, 10.1.1).
            headers = [each for each in headers if each[0].lower() != b"expect"]
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % each for each in headers]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Respond without the app, then close."""
        _LOG.warning(text)
        self._deaf = True
        client = self._limit.client(self._host, self._forwarded())
        # The sender may go on for seconds, and would keep what was parsed of the head.
        self._headers = []
        self._parser = self._new_parser()
        # Within a body, the app has the request and counts it.
        if not (self._due and self._in_body):
            self._not_http(status, client)
        if self._owes_response():
            return
        headers = [
            *self._own_headers,
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
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come within the body.
        if not self._in_body:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self._headers) > HEADERS_MAX:
            raise _Unsupported(_TOO_MANY)
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
        head = self._head(self._headers)
        self._load += REQUEST_BYTES + HEADER_BYTES * len(self._headers) + len(head)
        self._parsed.append(head)

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._load += len(body)
        (self._chunks if self._is_chunked else self._parsed).append(body)

    def _join_chunks(self) -> None:
        body = b"".join(self._chunks)
        self._chunks = []
        self._parsed.append(b"%x\r\n%b\r\n" % (len(body), body))

    def on_message_complete(self) -> None:
        # After an offer to upgrade the parser ends the request; `_ignore_upgrade` parses it again.
        if self._parser.should_upgrade():
            return
        self._in_body = False
        self._cancel_timeout()
        if self._is_chunked:
            if self._chunks:
                self._join_chunks()
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
