"""One request to the API: within time and size, in the budget, tried again where that is safe.

By httpx, because pages have megabytes and the client of the sinks reads 64 KiB.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import httpx

from relay import __version__
from relay.core import foreign_json
from relay.core.api_settings import ApiSettings
from relay.core.clock import Clock, SystemClock
from relay.core.proxies import Proxies
from relay.outbound import tls
from relay.outbound.http.responses import retry_after_ms
from relay.video_service.api.budget import Budget
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.fields import Document

# Their messages hold URLs, and so e-mail addresses.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

ANSWER_MAX_BYTES = 16 * 1024 * 1024
"""A page of 1,000 sessions with long forms takes about a tenth of it."""

TIMEOUT_S = 30.0
"""Time limit of one try, to the end of its answer."""

CONNECT_S = 5.0
IDLE_S = 5.0
"""An idle connection is dropped after this long: the service may have closed it by then."""

CONNECTIONS = 8

READ_RETRIES_S = (0.5, 2.0)
"""Waits before a read is tried again; a change is never tried again, unless it was not taken."""

PATIENCE_S = 120.0
"""Time that a request waits in all for the service to take more; the limit is one of minutes."""

FIRST_PAUSE_S = 2.0
"""Wait after a 429 that names none; it doubles."""

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 3600.0
"""Bounds of a pause, whatever an answer asks for."""

_REASONS: Mapping[int, Reason] = {
    401: "key refused",
    403: "no access",
    404: "not found",
    407: "proxy failed",
    429: "rate limited",
}
_PASSING: frozenset[Reason] = frozenset(
    (
        "cannot connect",
        "no answer",
        "connection closed",
        "proxy failed",
        "broken answer",
        "service failed",
    )
)
"""Reasons for which a read is tried again."""

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


class Exchange:
    """Connections to one API with one key; every method raises ServiceApiError."""

    def __init__(
        self,
        settings: ApiSettings,
        *,
        budget: Budget,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._base = settings.base_url.rstrip("/")
        self._budget = budget
        self._sleep = sleep
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._limited = 0
        """Requests that wait for the budget."""
        self._failed: Reason | None = None
        """Why the last read failed so far, or was given up by its caller."""
        proxy = Proxies.of(settings.outbound).url_for(self._base)
        self._unsent: Reason = "proxy failed" if proxy else "cannot connect"
        """Why a request was not sent: with a proxy, no connection but its own is waited for."""
        self._http = httpx.AsyncClient(
            headers={
                "Authorization": f"Bearer {settings.key.reveal()}",
                "Accept": "application/json",
                # Compressed content has no known size.
                "Accept-Encoding": "identity",
                "User-Agent": f"relay/{__version__}",
            },
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=IDLE_S),
            verify=tls.for_http(),
            proxy=proxy,
            follow_redirects=False,
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    @property
    def delay(self) -> Reason | None:
        """Why answers are late now, if anything is known to hold them up."""
        return "rate limited" if self._limited else self._failed

    async def read(self, path: str, query: Mapping[str, str | None] | None = None) -> Document:
        """Return the answer to a GET; values of None are left out of the query."""
        waits, self._failed = iter(READ_RETRIES_S), None
        params = {name: value for name, value in (query or {}).items() if value is not None}
        while True:
            try:
                content = await self._taken("GET", path, params=params)
                document = await asyncio.to_thread(_document, content)
            except ServiceApiError as error:
                wait_s = next(waits, None)
                if wait_s is None or error.reason not in _PASSING:
                    raise
                self._failed = error.reason
            else:
                self._failed = None
                return document
            await self._sleep(wait_s)

    async def change(self, method: str, path: str, body: object = None) -> Document:
        """Return the answer to a request that changes something; an empty one has no fields.

        It is sent once, and again only after a 429, which says that it was not taken.
        """
        content = await self._taken(method, path, json=body)
        return _document(content) if content else {}

    async def _taken(self, method: str, path: str, **content: Any) -> bytes:
        """Return the answer's content, once the service does not answer 429."""
        pause_s, left_s = FIRST_PAUSE_S, PATIENCE_S
        while True:
            if self._budget.paused_s() > left_s:
                raise ServiceApiError("rate limited", status=429)
            await self._granted()
            answer = await self._attempt(method, path, **content)
            if answer.status != httpx.codes.TOO_MANY_REQUESTS:
                return _checked(answer)
            wait_s = self._asked_wait_s(answer, default=pause_s)
            await self._budget.pause(wait_s)
            left_s -= wait_s
            pause_s *= 2

    async def _granted(self) -> None:
        self._limited += 1
        try:
            await self._budget.grant(self)
        except asyncio.CancelledError:
            self._failed = "rate limited"
            raise
        finally:
            self._limited -= 1

    def _asked_wait_s(self, answer: _Answer, *, default: float) -> float:
        asked_ms = retry_after_ms(answer.headers, now_ms=self._clock.now_ms())
        return min(max(default if asked_ms is None else asked_ms / 1000, PAUSE_MIN_S), PAUSE_MAX_S)

    async def _attempt(self, method: str, path: str, **content: Any) -> _Answer:
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream(method, self._base + path, **content) as response,
            ):
                body = await _read(response)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            failure = _failure(error, unsent=self._unsent)
        else:
            return _Answer(response.status_code, response.headers, body)
        # Out here, because an error raised in the handler carries the first one, and that the URL.
        raise failure


async def _read(response: httpx.Response) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServiceApiError("broken answer", status=response.status_code, uncertain=True)
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > ANSWER_MAX_BYTES:
            raise ServiceApiError("answer too large", status=response.status_code, uncertain=True)
    return bytes(body)


def _failure(error: Exception, *, unsent: Reason) -> ServiceApiError:
    if any(isinstance(cause, ssl.SSLError) for cause in tls.causes(error)):
        return ServiceApiError("TLS failed")
    if isinstance(error, _UNSENT):
        return ServiceApiError(unsent)
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return ServiceApiError("cannot connect")
    if isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)):
        return ServiceApiError("connection closed", uncertain=True)
    return ServiceApiError("no answer", uncertain=True)


def _checked(answer: _Answer) -> bytes:
    """Return the content of a success; raises ServiceApiError for every other status."""
    status = answer.status
    if 200 <= status < 300:
        return answer.content
    if status >= 500:
        raise ServiceApiError("service failed", status=status, uncertain=True)
    if status < 400:
        raise ServiceApiError("redirect refused", status=status, uncertain=True)
    raise ServiceApiError(_REASONS.get(status, "request refused"), status=status)


def _document(content: bytes) -> Document:
    try:
        document = foreign_json.decode(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServiceApiError("broken answer", uncertain=True)
    return document
