"""The public listener: reads a request, has it verified, has it stored, and answers.

One fsync and nothing else stands between the sender and its answer; no sink is known here.
The answers are those of CONTRACT.md, section 3: never a redirect, never 410, never 500.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relay import log
from relay.clock import Clock
from relay.config import ServerSettings
from relay.deadline import Deadlines
from relay.errors import BodyRejected, Rejected, StoreError
from relay.event import LEAD_CAPTURED, VIDEO_WATCHED, Event, Outcome, Unreadable, milestone
from relay.inbound import Headers, SourceSettings, authenticate
from relay.metrics import UNKNOWN, Metrics
from relay.routing import Route, Verdict, match
from relay.store import Store

BUSY = 8
"""Verified requests in hand at once; a sender with a handful of connections never gets there."""

_STATUS = {"accepted": 202, "duplicate": 200, "conflict": 200, "unreadable": 200}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")


def _constant(code: int, status: str, **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(orjson.dumps({"status": status}), code, fields, "application/json")


_UNAUTHORIZED = _constant(401, "unauthorized")
# What is left of an unread body would be taken for the next request, so those connections close.
_REFUSALS = {
    "path": _constant(404, "not found"),
    "method": _constant(405, "method not allowed", allow="POST"),
    "timeout": _constant(408, "timeout", connection="close"),
    "disconnected": _constant(408, "timeout", connection="close"),
    "too_large": _constant(413, "too large", connection="close"),
    "unavailable": _constant(503, "unavailable", retry_after="10"),
}


class Receiver:
    """The ASGI app of the public listener; `draining` makes it turn every request away."""

    def __init__(
        self,
        sources: Iterable[SourceSettings],
        routes: Sequence[Route],
        *,
        store: Store,
        limits: ServerSettings,
        metrics: Metrics,
        clock: Clock,
        wake: Callable[[str], None],
    ) -> None:
        """`wake` is told the name of every sink that has a new delivery."""
        self._sources = {path: source for source in sources for path in _paths(source)}
        self._routes = routes
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._wake = wake
        self._storing = 0
        self._log = log.get()
        self._deadlines = Deadlines(clock)
        self._sampled = log.Sampled(clock)
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = self._clock.monotonic()
        # The raw path, because a decoded one would let %68ook through as hook.
        source = self._sources.get(scope["raw_path"])
        name = UNKNOWN if source is None else source.name
        response = await self._answer(source, scope, receive)
        self._metrics.request(name, response.status_code)
        if response.status_code < 300:
            self._metrics.acknowledged(name, self._clock.monotonic() - started_s)
        await response(scope, receive, send)

    async def _answer(
        self, source: SourceSettings | None, scope: Scope, receive: Receive
    ) -> Response:
        if source is None:
            return self._refuse(UNKNOWN, "path", scope)
        if scope["method"] != "POST":
            return self._refuse(source.name, "method", scope)
        if self.draining:
            return self._refuse(source.name, "unavailable", scope)
        try:
            return await self._take(source, scope["headers"], receive)
        except BodyRejected as error:
            return self._refuse(source.name, error.reason, scope)
        except Rejected as error:
            if error.skew_s is not None:
                self._metrics.skew(source.name, error.skew_s)
            return self._refuse(source.name, error.reason, scope, skew_s=error.skew_s)
        except StoreError as error:
            self._fail("store.unavailable", source.name, error, message=str(error))
            return self._refuse(source.name, "unavailable", scope)
        except Exception as error:  # noqa: BLE001
            # A bug of ours: the sender is to try again, for 500 is no answer it can act on.
            self._fail("receiver.bug", source.name, error, **log.describe(error))
            return self._refuse(source.name, "unavailable", scope)

    async def _take(self, source: SourceSettings, headers: Headers, receive: Receive) -> Response:
        """Read, verify, store, and answer what became of it.

        Raises BodyRejected, Rejected, and StoreError, also where the store takes too long.
        """
        body = None
        try:
            with self._deadlines.within(self._limits.body_timeout.seconds) as deadline:
                body = await self._read(headers, receive)
                now_ms = self._clock.now_ms()
                content, skew_s = authenticate(source, headers, body, now_ms=now_ms)
                self._metrics.skew(source.name, skew_s)
                deadline.extend(self._limits.ack_timeout.seconds)
                return await self._store_it(content)
        except TimeoutError:
            if body is None:
                raise BodyRejected("timeout") from None
            limit_s = self._limits.ack_timeout.seconds
            raise StoreError(f"not durable within {limit_s:g} s") from None

    async def _store_it(self, content: Event | Unreadable) -> Response:
        self._storing += 1
        try:
            if isinstance(content, Event):
                return _acknowledgement(await self._accept(content), content.id)
            return _acknowledgement(await self._keep(content), None)
        finally:
            self._storing -= 1

    def is_busy(self) -> bool:
        """Whether so many verified requests wait for the store that deliveries should give way."""
        return self._storing > BUSY

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._limits.max_body
        if _declared(headers) > limit:
            raise BodyRejected("too_large")
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BodyRejected("disconnected")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise BodyRejected("too_large")
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _accept(self, event: Event) -> Outcome:
        verdicts = match(event, self._routes)
        return await self._store.accept(
            event, verdicts, lambda outcome: self._accepted(event, verdicts, outcome)
        )

    def _accepted(self, event: Event, verdicts: Sequence[Verdict], outcome: Outcome) -> None:
        """Count and wake, once it is durable, whether or not the sender still waits."""
        self._metrics.received(event.source, event.known_kind, outcome, event.received_ms)
        if outcome == "accepted":
            self._count(event)
            for verdict in verdicts:
                self._wake(verdict.sink)
        elif outcome == "conflict":
            self._log.warning("event.conflict", source=event.source, id=event.id, kind=event.kind)

    async def _keep(self, request: Unreadable) -> Outcome:
        return await self._store.keep(request, lambda outcome: self._kept(request, outcome))

    def _kept(self, request: Unreadable, outcome: Outcome) -> None:
        self._metrics.received(request.source, "other", outcome, request.received_ms)
        self._log.warning("event.unreadable", source=request.source, reason=request.reason)

    def _count(self, event: Event) -> None:
        if event.kind == LEAD_CAPTURED:
            self._metrics.lead(event.source)
        elif event.kind == VIDEO_WATCHED:
            reached = milestone(event.document())
            if reached is not None:
                self._metrics.milestone(event.source, reached)

    def _fail(self, event: str, source: str, error: Exception, /, **fields: str) -> None:
        # Limited like the refusals, because a full disk fails every request.
        reason = type(error).__name__
        self._sampled.line(event, reason=reason, level="error", source=source, **fields)

    def _refuse(
        self, source: str, reason: str, scope: Scope, *, skew_s: int | None = None
    ) -> Response:
        response = _REFUSALS.get(reason, _UNAUTHORIZED)
        self._metrics.rejected(source, reason)
        self._sampled.line(
            "request.refused",
            source=source,
            code=response.status_code,
            reason=reason,
            skew_s=skew_s,
            client=_client(scope),
            request_id=_request_id(scope["headers"]),
        )
        return response


def _paths(source: SourceSettings) -> tuple[bytes, ...]:
    path = source.path.rstrip("/").encode()
    return (path, path + b"/") if path else (b"/",)


def _declared(headers: Headers) -> int:
    # The server has refused whatever is not a number before.
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _client(scope: Scope) -> str | None:
    # A proxy may hand on what a stranger typed as an address.
    host = (scope.get("client") or ("",))[0]
    return host if _ADDRESS.fullmatch(host) else None


def _request_id(headers: Headers) -> str | None:
    value = next((value for name, value in headers if name == b"x-request-id"), b"")
    return value.decode() if _REQUEST_ID.fullmatch(value) else None


def _acknowledgement(outcome: Outcome, event_id: str | None) -> Response:
    # A conflict is our affair: for the sender the event is known, and trying again is in vain.
    status = "duplicate" if outcome == "conflict" else outcome
    content = {"status": status} if event_id is None else {"status": status, "id": event_id}
    return Response(orjson.dumps(content), _STATUS[outcome], None, "application/json")
