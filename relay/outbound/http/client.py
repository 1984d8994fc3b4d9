"""The one way out by HTTP: how a client is made, what a failed exchange and each status mean.

outgoing-http.md, sections 3, 4, 7 and 8.
"""

import logging
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.metadata import version
from typing import cast
from urllib.parse import unquote

import httpcore
import httpx

from relay.core.config_values import Duration
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound import tls
from relay.outbound.http.pool import ConnectionPools
from relay.outbound.http.stream import Unasked

# httpx logs the URL of every request, and httpcore the headers; both hold secrets.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

USER_AGENT = f"relay/{version('relay')}"

EXCERPT_BYTES = 1024
READ_BYTES = 64 * 1024
"""An answer is read up to here, so that its connection can be used again; then it is hung up."""

_NO_DATE = (ValueError, TypeError, IndexError, ArithmeticError)
"""Whatever the parser raises at odd texts: an absurd zone is an OverflowError."""

_SECRET_CHARS = 8
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_FAILURES: tuple[tuple[type[Exception], type[SinkError], str], ...] = (
    (socket.gaierror, Temporary, "name not found"),
    (ConnectionRefusedError, Temporary, "connection refused"),
    (httpcore.ConnectTimeout, Temporary, "could not connect in time"),
    (httpcore.PoolTimeout, Temporary, "no free connection in time"),
    (httpcore.TimeoutException, Temporary, "no answer in time"),
    (httpcore.ConnectError, Temporary, "could not connect"),
    (httpcore.NetworkError, Temporary, "connection reset"),
    (Unasked, Temporary, "an answer came before the request; the connection was given up"),
    (httpcore.RemoteProtocolError, Temporary, "broken answer, or none before the connection ended"),
)
"""The first row that fits an error or one of its causes decides."""

_AFTER_SENDING = (httpcore.NetworkError, httpcore.RemoteProtocolError)
"""Rows of failures that the event itself may have provoked: firewalls hang up on some."""

_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer as far as it was read; `complete` says that `excerpt` is all of it."""

    status: int
    headers: httpx.Headers
    excerpt: str
    complete: bool
    body: bytes = field(default=b"", repr=False)
    """What was read, secrets and all: to be understood, never to be shown."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a status outside 2xx says: the error to raise, and a sentence for the operator."""

    error: type[SinkError]
    text: str


_BY_CLASS = {
    3: Meaning(Misconfigured, "a redirect, which is never followed: is the URL right?"),
    4: Meaning(Refused, "the far end refuses this event"),
    5: Meaning(Temporary, "the far end has a fault"),
}

MEANINGS: dict[int, Meaning] = {
    **{status: _BY_CLASS[status // 100] for status in range(300, 600)},
    401: Meaning(Misconfigured, "the far end does not know our credentials"),
    402: Meaning(Misconfigured, "the far end wants to be paid"),
    403: Meaning(Misconfigured, "our credentials do not permit this"),
    404: Meaning(Misconfigured, "nothing is at this URL"),
    405: Meaning(Misconfigured, "the URL does not take this method"),
    407: Meaning(Misconfigured, "a proxy wants credentials"),
    408: Meaning(Temporary, "the far end gave up waiting for our request"),
    410: Meaning(Misconfigured, "the URL is gone for good"),
    413: Meaning(Refused, "the event is too large for the far end"),
    415: Meaning(Refused, "the far end does not take this type of content"),
    421: Meaning(Misconfigured, "the far end does not serve this host name"),
    425: Meaning(Temporary, "the far end asks for it later"),
    426: Meaning(Misconfigured, "the far end wants another protocol"),
    429: Meaning(Temporary, "the far end asks for a slower pace"),
    502: Meaning(Temporary, "the server behind the far end fails"),
    503: Meaning(Temporary, "the far end cannot serve now"),
    504: Meaning(Temporary, "the server behind the far end does not answer"),
}
"""Every status from 300 to 599; 2xx alone is success (outgoing-http.md, section 3)."""

_UNKNOWN = Meaning(Temporary, "a status that HTTP does not have")


@cache
def _shared_context() -> ssl.SSLContext:
    # One for all sinks: making one costs about 30 ms (outgoing-http.md, section 7).
    return tls.trusting()


def client(
    *, timeout: Duration, connections: int, verify: ssl.SSLContext | None = None
) -> httpx.AsyncBaseTransport:
    """Make the one way out of a sink; it opens no connection before its first exchange.

    A transport alone: redirects, cookies and proxies, which `AsyncClient` adds and charges for, are
    not wanted.
    """
    context = verify or _shared_context()
    return ConnectionPools(context, connections=connections, timeout_s=timeout.seconds)


async def exchange(
    client: httpx.AsyncBaseTransport, request: httpx.Request, *, secrets: Sequence[str] = ()
) -> Response:
    """Send one request and read its answer within bounds, whatever its status.

    Where the answer repeats the URL's path, query or credentials, or one of `secrets`, it says ***.
    Raises Temporary or Misconfigured where there was no answer.
    """
    try:
        answer = await client.handle_async_request(request)
        try:
            body = await _read(answer)
        finally:
            await answer.aclose()
    except (*_ERRORS, OSError) as error:
        failure = _failure(error)
    else:
        text, complete = _excerpt(body, request.url, secrets)
        return Response(answer.status_code, answer.headers, text, complete, body)
    # Out here, because an error raised in the handler carries the first one, and that the URL.
    raise failure


def judge(response: Response, *, now_ms: int, asked: str | None = None) -> None:
    """Return for a 2xx; raises Temporary, Refused or Misconfigured as `MEANINGS` says.

    `asked` is the method where it is not the one that events are sent with.
    """
    status = response.status
    if 200 <= status < 300:
        return
    meaning = MEANINGS.get(status, _UNKNOWN)
    reason = (
        f"{status}: {meaning.text}" if asked is None else f"{status} to {asked}: {meaning.text}"
    )
    if meaning.error is Temporary:
        raise Temporary(
            reason,
            status=status,
            answer=response.excerpt,
            about_event=True,
            retry_after_ms=retry_after_ms(response.headers, now_ms=now_ms),
        )
    raise meaning.error(reason, status=status, answer=response.excerpt, about_event=True)


def retry_after_ms(headers: httpx.Headers, *, now_ms: int) -> int | None:
    """Read Retry-After, seconds or a date (RFC 9110, 10.2.3); None where it says nothing usable."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,12}", value):
        return int(value) * 1000
    try:
        date = parsedate_to_datetime(value)
    except _NO_DATE:
        return None
    # A date without a zone is GMT, the only one that HTTP knows.
    due_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return max(0, int(due_s * 1000) - now_ms)


def url_secrets(url: httpx.URL) -> tuple[str, ...]:
    """List what may be secret in a URL beyond its host, as sent and as a server decodes it."""
    sent = f"{url.userinfo.decode()}@{url.raw_path.decode()}"
    parts = [*re.split("[/?&=:@]", sent), url.raw_path.decode()]
    return tuple({form for part in parts for form in (part, unquote(part))})


async def _read(answer: httpx.Response) -> bytes:
    body = bytearray()
    stream = cast(
        "AsyncGenerator[bytes, None]", aiter(cast("httpx.AsyncByteStream", answer.stream))
    )
    async with aclosing(stream) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > READ_BYTES:
                break
    return bytes(body)


def _excerpt(body: bytes, url: httpx.URL, secrets: Sequence[str]) -> tuple[str, bool]:
    text = _CONTROLS.sub("\ufffd", body.decode(errors="replace"))
    # A short answer has no room for a secret; what is shorter still is a common word.
    hidden = (*url_secrets(url), *secrets) if len(body) >= _SECRET_CHARS else ()
    # The longest first, so that no part of a secret is left standing.
    for secret in sorted(hidden, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARS:
            text = text.replace(secret, "***")
    return text.encode()[:EXCERPT_BYTES].decode(errors="ignore"), len(body) <= EXCERPT_BYTES


def _failure(error: Exception) -> SinkError:
    causes = tuple(_causes(error))
    of_tls = [found for cause in causes if (found := tls.failure(cause, peer="far end"))]
    if of_tls:
        # A certificate says more than that the handshake failed.
        return next((each for each in of_tls if isinstance(each, Misconfigured)), of_tls[0])
    for kind, outcome, text in _FAILURES:
        if any(isinstance(cause, kind) for cause in causes):
            return outcome(text, about_event=kind in _AFTER_SENDING)
    return Temporary("could not connect")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        # Any wait for bytes over TLS leaves one of these behind; it says nothing.
        if not isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__
