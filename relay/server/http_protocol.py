"""One HTTP connection: timeouts, refusals, and a close that never cuts off a response."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

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


class _Unsupported(Exception):
    """A head that asks for another major version, or for a tunnel."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class HttpProtocol(HttpToolsProtocol):
    """Times out slow heads and the rest of refused bodies, and refuses anything but HTTP/1.

    Requests that were complete before a fault are answered in order.
    Offers to upgrade are ignored (RFC 9110, 7.8), and trailers are dropped: signatures and
    addresses count only in a request's head.
    """

    _head_timeout: asyncio.TimerHandle | None = None
    _unused = 0
    _refused = False
    _retiring = False

    def __init__(
        self,
        *arguments: Any,
        not_http: Callable[[int], None],
        limit: ConnectionLimit,
        **named: Any,
    ) -> None:
        """`not_http` is called with the status of each response that the app did not make."""
        super().__init__(*arguments, **named)
        self._not_http = not_http
        self._limit = limit
        self._reset_parser()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = Lingering(transport, self._may_have_more)
        super().connection_made(cast("asyncio.Transport", lingering))
        self._limit.enter(self, self.client[0] if self.client else "")
        self._start_head_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timeout()
        self._limit.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # A request behind the last response would never be answered.
        if self._refused or self.transport.is_closing():
            return
        self._unused += len(data)
        self._unset_keepalive_if_required()
        self._activity(data)
        if self._unused > HEAD_MAX and not self._refused:
            self._refuse(HTTPStatus.BAD_REQUEST, "Request head too large.")
        # None before the first request, which uvicorn's types do not say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is not None and cycle.response_complete
        # Never while a response is due: the close would cut it off.
        if self._head_timeout is None and answered:
            self._start_head_timeout()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A sender may half-close and still wait for its response; True keeps our side open."""
        if self._owes_response():
            self.cycle.keep_alive = False
            return True
        return False

    def retire(self) -> None:
        """Close after the next response, whether it is due or to come."""
        self._retiring = True
        # None before the first request, which uvicorn's types do not say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None:
            cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close at once if idle; a request that has arrived, read or not, is answered first."""
        self.retire()
        if self._idles():
            self.transport.close()

    def evict(self) -> bool:
        """Close at once if no request is under way; returns whether it did."""
        idles = self._idles()
        if idles:
            # A close would wait for a client that does not read its last response.
            self.transport.abort()
        return idles

    def _idles(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return (cycle is None or cycle.response_complete) and not unread(self.transport)

    def _reset_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        # `on_headers_complete` checks versions. Without the second leniency, data behind a last
        # request would be an error, and that request's answer would be lost.
        self.parser.set_dangerous_leniencies(lenient_version=True, lenient_data_after_close=True)

    def _activity(self, data: bytes) -> None:
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self.logger.warning("Invalid HTTP request received.")
            cause = error.__context__
            if isinstance(cause, _Unsupported):
                self._refuse(cause.status, str(cause))
            else:
                self._refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")

    def _parse(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
                self._ignore_upgrade()
            else:
                return

    def _ignore_upgrade(self) -> None:
        """Parse the head again without the offer, after which the parser would read no body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        self._reset_parser()
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Respond without the app, then close."""
        self._refused = True
        if self._owes_response():
            self.cycle.keep_alive = False
            return
        # Within a body, the app has the request and counts it.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            self._not_http(status)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
            (b"connection", b"close"),
        ]
        lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
        lines += [b"%b: %b" % each for each in headers]
        self.transport.write(b"\r\n".join([*lines, b"", text.encode()]))
        self.transport.close()

    def _owes_response(self) -> bool:
        """Whether a complete request waits for its response."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        whole = cycle is not None and not cycle.response_complete and not cycle.more_body
        return whole or bool(self.pipeline)

    def _may_have_more(self) -> bool:
        """Whether the sender may still be sending a refused body or head."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        amid_a_body = cycle is not None and cycle.response_complete and cycle.more_body
        return amid_a_body or self._unused > HEAD_MAX

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version()[0] != "1":
            raise _Unsupported(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Unsupported(HTTPStatus.BAD_REQUEST)
            return
        self._unused = 0
        self._cancel_head_timeout()
        self._limit.used(self)
        super().on_headers_complete()
        # The app holds the first list; uvicorn appends trailers to this one.
        self.headers = []
        if self._retiring:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        # After an offer to upgrade the parser ends the request; `_ignore_upgrade` parses it again.
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        # A trailer can set `Connection: close` too, and then the parser takes no further request.
        if not self.parser.should_keep_alive():
            self.cycle.keep_alive = False

    def _start_head_timeout(self) -> None:
        self._head_timeout = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _cancel_head_timeout(self) -> None:
        if self._head_timeout is not None:
            self._head_timeout.cancel()
            self._head_timeout = None
