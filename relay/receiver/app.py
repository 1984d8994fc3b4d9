"""The public listener's app: reads, verifies, stores and acknowledges one request.

One fsync and nothing else stands between the sender and its response; sinks are unknown here.
A response is a code and one JSON object (CONTRACT.md, section 3), never a redirect, 410 or 500.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from relay.config import ServerSettings
from relay.core.authentication import Headers, SourceSettings, authenticate
from relay.core.clock import Clock
from relay.core.errors import BodyRejected, Rejected, StoreError, StoreUnavailable
from relay.core.event import Event, Outcome, Unreadable
from relay.core.large_bodies import BodyWorker
from relay.core.routing import Route
from relay.core.timeouts import Deadlines
from relay.receiver.intake import Intake
from relay.receiver.reporter import RequestReporter
from relay.receiver.secret_rotation import SecretRotations
from relay.server.listener import VERIFIED
from relay.telemetry.metrics import UNKNOWN

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")

_CODES = {"accepted": 202, "duplicate": 200, "conflict": 200, "unreadable": 200}


class PlainResponse:
    """In place of Starlette's Response, which costs several times as much."""

    def __init__(self, code: int, content: dict[str, str], **headers: str) -> None:
        """Underscores in the names of headers stand for hyphens."""
        self.code = code
        self._body = orjson.dumps(content)
        self._headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self._body)),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ]

    async def send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.code, "headers": self._headers}
        await send(head)
        await send({"type": "http.response.body", "body": self._body})


def acknowledgement(outcome: Outcome, content: Event | Unreadable) -> PlainResponse:
    """Response to a verified request; an unreadable one has no id."""
    # The sender cannot resolve a conflict: for it, the event is known.
    fields: dict[str, str] = {"status": "duplicate" if outcome == "conflict" else outcome}
    if isinstance(content, Event):
        fields["id"] = content.id
    return PlainResponse(_CODES[outcome], fields)


def refusal(reason: str) -> PlainResponse:
    """Response to a refused request; it never says why a signature was rejected."""
    return _REFUSALS.get(reason, _UNAUTHORIZED)


_UNAUTHORIZED = PlainResponse(401, {"status": "unauthorized"})
# An unread body would be parsed as the next request, so these connections close.
_REFUSALS = {
    "path": PlainResponse(404, {"status": "not found"}),
    "method": PlainResponse(405, {"status": "method not allowed"}, allow="POST"),
    "timeout": PlainResponse(408, {"status": "timeout"}, connection="close"),
    "disconnected": PlainResponse(408, {"status": "timeout"}, connection="close"),
    "too_large": PlainResponse(413, {"status": "too large"}, connection="close"),
    "unavailable": PlainResponse(503, {"status": "unavailable"}, retry_after="10"),
}


class _Terms(NamedTuple):
    """Settings of one request from its head to its response, whatever is adopted meanwhile."""

    sources: Mapping[bytes, SourceSettings]
    routes: Sequence[Route]
    limits: ServerSettings
    proxies: ProxyHeadersMiddleware


class Receiver:
    """The ASGI app of the public listener; refuses every request once `draining` is set."""

    def __init__(
        self,
        sources: Iterable[SourceSettings],
        *,
        intake: Intake,
        worker: BodyWorker,
        rotations: SecretRotations,
        limits: ServerSettings,
        reporter: RequestReporter,
        clock: Clock,
    ) -> None:
        self._intake = intake
        self._worker = worker
        self._rotations = rotations
        self._reporter = reporter
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self.draining = False
        self.adopt(sources, intake.routes, limits=limits)

    def adopt(
        self, sources: Iterable[SourceSettings], routes: Sequence[Route], *, limits: ServerSettings
    ) -> None:
        """Apply these to the requests that begin from now on."""
        self._intake.routes = routes
        self._terms = _Terms(
            sources={path: source for source in sources for path in _paths(source)},
            routes=routes,
            limits=limits,
            proxies=ProxyHeadersMiddleware(_nothing, list(limits.trusted_proxies)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = self._clock.monotonic()
        # The raw path, because a decoded one would let %68ook through as hook.
        terms = self._terms
        source = terms.sources.get(scope["raw_path"])
        name = UNKNOWN if source is None else source.name
        try:
            response = await self._respond(source, terms, scope, receive)
        except Exception as error:  # noqa: BLE001
            # Our bug: a 503 tells the sender to retry; nothing can be done about a 500.
            response = refusal("unavailable")
            self._reporter.bug(name, error)
        self._reporter.responded(name, response.code, seconds=self._clock.monotonic() - started_s)
        await response.send(send)

    async def _respond(
        self, source: SourceSettings | None, terms: _Terms, scope: Scope, receive: Receive
    ) -> PlainResponse:
        if source is None:
            return await self._refuse(UNKNOWN, "path", scope)
        if scope["method"] != "POST":
            return await self._refuse(source.name, "method", scope)
        if self.draining:
            return await self._refuse(source.name, "unavailable", scope)
        try:
            return await self._take(source, terms, scope, receive)
        except BodyRejected as error:
            return await self._refuse(source.name, error.reason, scope)
        except Rejected as error:
            return await self._refuse(source.name, error.reason, scope, skew_s=error.skew_s)
        except StoreError as error:
            self._reporter.unavailable(source.name, error, size=_declared(scope["headers"]))
            return await self._refuse(source.name, "unavailable", scope)

    async def _take(
        self, source: SourceSettings, terms: _Terms, scope: Scope, receive: Receive
    ) -> PlainResponse:
        """Read, verify and store a request, and build its response.

        Raises BodyRejected, Rejected, and StoreError, also where the store takes too long.
        """
        body = None
        limits = terms.limits
        headers: Headers = scope["headers"]
        try:
            with self._deadlines.within(limits.body_timeout.seconds) as deadline:
                body = await _read(headers, receive, limit=limits.max_body)
                now_ms = self._clock.now_ms()
                verified = (
                    authenticate(source, headers, body, now_ms=now_ms)
                    # At once, because a coroutine takes 1 % of a small request's processor time.
                    if len(body) <= self._worker.large_bytes
                    else await self._worker.run(
                        len(body), partial(authenticate, source, headers, body, now_ms=now_ms)
                    )
                )
                content, skew_s, secret = verified
                scope["state"][VERIFIED]()
                self._reporter.verified(source.name, skew_s=skew_s, secret=secret, now_ms=now_ms)
                deadline.extend(limits.ack_timeout.seconds)
                outcome = await self._intake.store(content, terms.routes)
                self._reporter.acknowledging(outcome)
                return acknowledgement(outcome, content)
        except TimeoutError:
            if body is None:
                raise BodyRejected("timeout") from None
            limit_s = limits.ack_timeout.seconds
            raise StoreUnavailable(f"not durable within {limit_s:g} s") from None
        except Rejected as error:
            if body is not None:
                self._reporter.rejected(source.name, error, body, now_ms=now_ms)
                if error.reason == "mismatch":
                    await self._rotations.quarantine(source, headers, body, now_ms)
            raise

    def trusts(self, address: str) -> bool:
        """Whether the address is a trusted proxy's."""
        return address in self._terms.proxies.trusted_hosts

    async def _refuse(
        self, source: str, reason: str, scope: Scope, *, skew_s: int | None = None
    ) -> PlainResponse:
        response = refusal(reason)
        self._reporter.refused(
            source,
            reason,
            code=response.code,
            skew_s=skew_s,
            client=await self._client(scope),
            request_id=_request_id(scope["headers"]),
        )
        return response

    async def _client(self, scope: Scope) -> str | None:
        # Looked up for refusals only, because it would slow every request down.
        await self._terms.proxies(cast("Any", scope), _nothing, _nothing)
        host = (scope.get("client") or ("",))[0]
        # A proxy may forward text that a stranger passed off as an address.
        return host if _ADDRESS.fullmatch(host) else None


async def _read(headers: Headers, receive: Receive, *, limit: int) -> bytes:
    if _declared(headers) > limit:
        raise BodyRejected("too_large")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyRejected("disconnected")
        piece: bytes = message.get("body", b"")
        if len(body) + len(piece) > limit:
            raise BodyRejected("too_large")
        is_last = not message.get("more_body", False)
        if is_last and not body:
            return piece
        # Joined at once, because a list of tiny pieces would take many times their size.
        body += piece
        if is_last:
            return bytes(body)


async def _nothing(*_: object) -> Any:
    pass


def _paths(source: SourceSettings) -> tuple[bytes, ...]:
    path = source.path.rstrip("/").encode()
    return (path, path + b"/") if path else (b"/",)


def _declared(headers: Headers) -> int:
    # The server has already refused anything but a number.
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _request_id(headers: Headers) -> str | None:
    value = next((value for name, value in headers if name == b"x-request-id"), b"")
    return value.decode() if _REQUEST_ID.fullmatch(value) else None
