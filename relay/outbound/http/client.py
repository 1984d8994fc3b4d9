"""The HTTP client of the sinks: one exchange within bounds, and the error where it fails.

outgoing-http.md, sections 7 and 8.
"""

import base64
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import unquote

import aiohttp
import httpx
import yarl

from relay import __version__
from relay.core import timeouts
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.proxies import Proxies
from relay.outbound import tls
from relay.outbound.http import proxy_failures, responses
from relay.outbound.http.guard import (
    GuardedConnector,
    UnexpectedResponseError,
    current_use,
    serves_once,
)
from relay.outbound.http.odd_answers import FIELD_BYTES, FIELDS

# Its messages may hold URLs, and so secrets.
logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)

USER_AGENT = f"relay/{__version__}"

EXCERPT_BYTES = 1024
READ_BYTES = 64 * 1024
"""Maximum read of a response, so that its connection can be used again; a longer one is cut off."""
PROXY_SHARE = 0.8
"""Share of the time limit in which a proxy has to open the way: its silence is then its own."""
IDLE_S = 5.0
"""An idle connection is dropped after this long: the peer may have closed it by then."""

_SECRET_CHARS = 8
_SECRET_PART = re.compile(f"[^/?&=:@]{{{_SECRET_CHARS},}}")
_AFTER_HOST = re.compile(r"[^/?#]*://[^/?#]*")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_AUTOMATIC = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})
"""Headers that aiohttp would add.

Only those that a request lacks are skipped: for any list of headers to skip, aiohttp copies the
others.
"""

_FAILURES: tuple[tuple[type[Exception], type[SinkError], str], ...] = (
    (socket.gaierror, Temporary, "name not found"),
    (UnicodeError, Temporary, "name not found"),
    (ConnectionRefusedError, Temporary, "connection refused"),
    (aiohttp.ConnectionTimeoutError, Temporary, "could not connect in time"),
    (aiohttp.ClientConnectorError, Temporary, "could not connect"),
    (aiohttp.InvalidURL, Misconfigured, "the URL's host is not a canonical IPv4 address"),
    (
        UnexpectedResponseError,
        Temporary,
        "an answer came before the request; the connection was given up",
    ),
    (aiohttp.ClientOSError, Temporary, "connection reset"),
    (aiohttp.ClientError, Temporary, ""),
)
"""The first row that fits an error or its causes decides; without a text, the bytes name it."""

_UNKNOWN = "the connection ended without an answer"

_AFTER_SENDING = (aiohttp.ClientOSError, aiohttp.ClientError)
"""Rows of failures that the event itself may have provoked: firewalls hang up on some."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A URL as it is sent, and the texts that no excerpt of a response may repeat."""

    url: yarl.URL = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """The longest first, so that no part of a secret is left standing."""

    @classmethod
    def of(cls, url: httpx.URL | str, *, secrets: Iterable[str] = ()) -> Self:
        """Leave credentials in the URL out of requests, and keep its path as it is written.

        Raises ValueError for a host that ends in a number, but is no IPv4 address.
        """
        parsed, target = httpx.URL(url), _target(str(url))
        sent = f"{parsed.scheme}://{_authority(parsed)}{target}"
        own = _url_secrets(f"{parsed.userinfo.decode()}@{target}", target)
        # As encoded already: yarl would decode escapes, and signed URLs would no longer fit.
        return cls(yarl.URL(sent, encoded=True), _hidden(*own, *secrets))

    def at(self, target: str) -> Self:
        """Return the endpoint of another path and query at the same server.

        Raises httpx.InvalidURL.
        """
        origin = f"{self.url.scheme}://{self.authority}"
        target = _target(origin + target)
        url = yarl.URL(origin + target, encoded=True)
        return replace(self, url=url, secrets=_hidden(*self.secrets, *_url_secrets(target)))

    def hiding(self, *secrets: str) -> Self:
        """Return an endpoint of whose responses no excerpt repeats these texts, either."""
        return replace(self, secrets=_hidden(*self.secrets, *secrets))

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return self.url.raw_authority


class HttpClient:
    """The connections of one sink; the first exchange opens the first of them.

    No redirect is followed, no cookie kept, no body decompressed, no proxy used but `proxies`.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        connections: int,
        verify: ssl.SSLContext | None = None,
        peer: str = "destination",
        ends_connection: Callable[[int], bool] = responses.ends_connection,
        proxies: Proxies | None = None,
    ) -> None:
        """`timeout_s` limits connecting; the caller limits the whole exchange.

        A limit on each read would have aiohttp set and cancel a timer, a tenth of an exchange.
        `peer` is what errors call the other side; `ends_connection` decides by a response's status
        whether the next request is to go over another connection.
        """
        self._timeout_s = timeout_s
        self._connections = connections
        self._verify = verify
        self._peer = peer
        self._ends_connection = ends_connection
        self._proxies = proxies or Proxies()
        self._proxy_secrets = tuple(_credentials(self._proxies))
        self._session: aiohttp.ClientSession | None = None

    async def exchange(
        self,
        endpoint: HttpEndpoint,
        *,
        method: str = "POST",
        headers: Collection[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> responses.HttpResponse:
        """Send one request and read its response within bounds, whatever its status.

        Where the response repeats one of the endpoint's secrets, the excerpt says ***.
        Raises Temporary or Misconfigured where there was no response.
        """
        if self._session is None:
            self._session = self._open()
        current_use.set(None)
        proxy = self._proxies.url_for(str(endpoint.url)) if self._proxies.by_scheme else None
        is_forwarded = proxy is not None and endpoint.url.scheme == "http"
        # Some proxies pass a second request on as it is, with our credentials for them. aiohttp
        # pools the connection before this task resumes, so that `abort` alone would be too late.
        serves_once.set(is_forwarded)
        failure: SinkError | None
        is_kept = False
        try:
            response = await self._session.request(
                method,
                endpoint.url,
                headers=headers,
                skip_auto_headers=_AUTOMATIC.difference(name.lower() for name, _ in headers)
                or None,
                data=body or None,
                allow_redirects=False,
                proxy=proxy,
            )
            content, is_whole = await _read(response)
            is_kept = is_whole and not (is_forwarded or self._ends_connection(response.status))
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            failure = _failure(error, peer=self._peer)
            if proxy is not None:
                failure = _by_proxy(failure, error, peer=self._peer)
        else:
            failure = proxy_failures.of_answer(response) if is_forwarded else None
            if failure is None:
                text = _excerpt(content, (*endpoint.secrets, *self._proxy_secrets))
                complete = len(content) <= EXCERPT_BYTES
                return responses.HttpResponse(
                    response.status, response.headers, text, complete, content, is_whole
                )
        finally:
            use = current_use.get()
            if use is not None and not is_kept:
                timeouts.note(use.guard.progress())
                use.guard.abort(use.number)
        # Out here, because an error raised in the handler carries the first one, and that the URL.
        raise failure

    @asynccontextmanager
    async def apart(self) -> AsyncIterator["HttpClient"]:
        """Lend a client with the same settings and connections of its own, which end with it."""
        client = HttpClient(
            timeout_s=self._timeout_s,
            connections=self._connections,
            verify=self._verify,
            peer=self._peer,
            ends_connection=self._ends_connection,
            proxies=self._proxies,
        )
        try:
            yield client
        finally:
            await client.close()

    async def close(self) -> None:
        """Close every connection; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        share = PROXY_SHARE if self._proxies.by_scheme else 1.0
        connector = GuardedConnector(
            limit=self._connections,
            # True means aiohttp's own context, which it makes of the system's CAs on import.
            ssl=self._verify or tls.has_system_cas() or tls.for_http(),
            keepalive_timeout=IDLE_S,
            # Kept for no time: connections opened at once share a lookup, later ones look up anew.
            use_dns_cache=True,
            ttl_dns_cache=0,
            resolver=aiohttp.ThreadedResolver(),
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=FIELD_BYTES,
            max_field_size=FIELD_BYTES,
            max_headers=FIELDS,
            timeout=aiohttp.ClientTimeout(connect=self._timeout_s * share),
        )


def masked(target: str) -> str:
    """Return a path and a query without the parts that may be secrets."""
    return _SECRET_PART.sub("***", target)


def _target(url: str) -> str:
    """Return path and query, percent-encoded where it has to be, but with `.` and `..` in them.

    httpx would fold those, as a browser does; a signature may be over what the operator wrote.
    """
    path = _AFTER_HOST.sub("", url, count=1)
    # Of a URL without a host, httpx leaves the path alone; it may not begin with two slashes.
    relative = httpx.URL(f"/.{path if path.startswith('/') else f'/{path}'}")
    return relative.raw_path.decode().removeprefix("/.")


def _authority(url: httpx.URL) -> str:
    """Return host and port, an IPv4 address in the form of four numbers: `127.1` is one, too."""
    host, last = url.raw_host.decode(), url.raw_host.decode().rpartition(".")[2]
    if ":" in host or _NUMBER.fullmatch(last) is None:
        return url.netloc.decode()
    try:
        address = socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        raise ValueError("url: the host is neither a name nor an IPv4 address") from None
    return address if url.port is None else f"{address}:{url.port}"


def _url_secrets(*sent: str) -> Iterator[str]:
    """Yield what may be secret in a URL beyond its host, as sent and as a server decodes it."""
    for text in sent:
        for part in (*re.split("[/?&=:@]", text), text):
            yield from (part, unquote(part))


def _hidden(*secrets: str) -> tuple[str, ...]:
    """Order texts by their length, without those that are so short as to be common words."""
    hidden = {text for text in secrets if len(text) >= _SECRET_CHARS}
    return tuple(sorted(hidden, key=len, reverse=True))


def _credentials(proxies: Proxies) -> Iterator[str]:
    """Yield the credentials of the proxies, which a proxy may pass on and a destination repeat."""
    for secret in proxies.by_scheme.values():
        url = yarl.URL(secret.reveal())
        if url.password:
            yield base64.b64encode(f"{url.user or ''}:{url.password}".encode()).decode()
            yield url.password


async def _read(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return the body up to its bound, and whether that is all of it."""
    body = bytearray()
    try:
        while len(body) <= READ_BYTES and (piece := await response.content.readany()):
            body += piece
        return bytes(body), response.content.at_eof()
    finally:
        response.close()


def _excerpt(body: bytes, secrets: Iterable[str]) -> str:
    text = _CONTROLS.sub("\ufffd", body.decode(errors="replace"))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text.encode()[:EXCERPT_BYTES].decode(errors="ignore")


def _failure(error: Exception, *, peer: str) -> SinkError:
    use = current_use.get()
    unexpected = None if use is None else use.guard.error
    of_tls = tls.failure(unexpected or error, peer=peer)
    if of_tls is not None:
        return of_tls
    causes = tuple(tls.causes(unexpected or error))
    for kind, outcome, text in _FAILURES:
        if any(isinstance(cause, kind) for cause in causes):
            came = "" if use is None else use.guard.fault()
            return outcome(text or came or _UNKNOWN, about_event=kind in _AFTER_SENDING)
    return Temporary("could not connect")


def _by_proxy(failure: SinkError, error: Exception, *, peer: str) -> SinkError:
    """Return the failure of an exchange whose peer is a proxy, but for TLS within its tunnel."""
    use = current_use.get()
    if isinstance(failure, Misconfigured) or tls.failure(error, peer=peer) is not None:
        return failure
    if use is None:
        return proxy_failures.of_connecting(error, failure.reason)
    return failure if use.guard.is_tls else proxy_failures.after_sending(failure)
