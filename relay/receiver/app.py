"""The public listener: reads a request, has it verified, has it stored, and answers.

One fsync and nothing else stands between the sender and its answer; no sink is known here.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from relay.config import ServerSettings
from relay.core.authentication import Authenticated, Headers, SourceSettings, authenticate
from relay.core.clock import Clock
from relay.core.errors import BodyRejected, Rejected, StoreError
from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Route, Verdict, match
from relay.core.timeouts import Deadlines
from relay.receiver import responses
from relay.receiver.mismatches import Mismatches
from relay.receiver.responses import Response
from relay.store import Store
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import UNKNOWN, Metrics
from relay.telemetry.traffic import Traffic

BUSY = 8
"""Verified requests in hand at once; a sender with a handful of connections never gets there."""

Suspect = Callable[[SourceSettings, Headers, bytes, int], Awaitable[None]]
"""Takes the milliseconds of the receipt last; raises nothing."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")


class _Terms(NamedTuple):
    """What a request is held to from its beginning to its answer, whatever is adopted meanwhile."""

    sources: Mapping[bytes, SourceSettings]
    routes: Sequence[Route]
    limits: ServerSettings
    proxies: ProxyHeadersMiddleware


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
        activity: ActivityStream,
        suspect: Suspect,
    ) -> None:
        """`wake` is told the name of every sink that has a new delivery.

        `suspect` is handed what matches no secret, before that is refused.
        """
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._wake = wake
        self._activity = activity
        self._suspect = suspect
        self._mismatches = Mismatches()
        self.traffic = Traffic()
        self._storing = 0
        self._log = log.get()
        self._deadlines = Deadlines(clock)
        self._sampled = log.Sampled(clock)
        self.draining = False
        self.adopt(sources, routes, limits=limits)

    def adopt(
        self, sources: Iterable[SourceSettings], routes: Sequence[Route], *, limits: ServerSettings
    ) -> None:
        """Hold the requests that begin from now on to these."""
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
            given = await self._answer(source, terms, scope, receive)
        except Exception as error:  # noqa: BLE001
            # A bug of ours: the sender is to try again, for 500 is no answer it can act on.
            given = responses.refusal("unavailable")
            self._metrics.rejected(name, "unavailable")
            self._fail("receiver.bug", name, error, **log.describe(error))
        self._metrics.request(name, given.code)
        if given.code < 300:
            self._metrics.acknowledged(name, self._clock.monotonic() - started_s)
        await given.send(send)

    async def _answer(
        self, source: SourceSettings | None, terms: _Terms, scope: Scope, receive: Receive
    ) -> Response:
        if source is None:
            return await self._refuse(UNKNOWN, "path", scope)
        if scope["method"] != "POST":
            return await self._refuse(source.name, "method", scope)
        if self.draining:
            return await self._refuse(source.name, "unavailable", scope)
        try:
            return await self._take(source, terms, scope["headers"], receive)
        except BodyRejected as error:
            return await self._refuse(source.name, error.reason, scope)
        except Rejected as error:
            if error.skew_s is not None:
                self._metrics.skew(source.name, error.skew_s)
            return await self._refuse(source.name, error.reason, scope, skew_s=error.skew_s)
        except StoreError as error:
            self._fail("store.unavailable", source.name, error, message=str(error))
            return await self._refuse(source.name, "unavailable", scope)

    async def _take(
        self, source: SourceSettings, terms: _Terms, headers: Headers, receive: Receive
    ) -> Response:
        """Read, verify, store, and answer what became of it.

        Raises BodyRejected, Rejected, and StoreError, also where the store takes too long.
        """
        body = None
        limits = terms.limits
        try:
            with self._deadlines.within(limits.body_timeout.seconds) as deadline:
                body = await _read(headers, receive, limit=limits.max_body)
                now_ms = self._clock.now_ms()
                content, skew_s, secret = authenticate(source, headers, body, now_ms=now_ms)
                self._metrics.skew(source.name, skew_s)
                self._metrics.verified(source.name, secret)
                self.traffic.verified(source.name, skew_s, now_ms=now_ms)
                deadline.extend(limits.ack_timeout.seconds)
                return await self._store_it(content, terms.routes)
        except TimeoutError:
            if body is None:
                raise BodyRejected("timeout") from None
            limit_s = limits.ack_timeout.seconds
            raise StoreError(f"not durable within {limit_s:g} s") from None
        except Rejected as error:
            if body is not None:
                await self._doubt(source, error, headers, body, now_ms)
            raise

    async def _doubt(
        self, source: SourceSettings, error: Rejected, headers: Headers, body: bytes, now_ms: int
    ) -> None:
        """Note a refused signature, and keep its request if the source's secret is rotated."""
        retried = error.reason == "mismatch" and self._mismatches.is_retry(
            source.name, body, self._clock.monotonic()
        )
        self.traffic.refused(source.name, skew_s=error.skew_s, retried=retried, now_ms=now_ms)
        if retried:
            self._metrics.mismatch_retried(source.name)
        if error.reason == "mismatch":
            await self._suspect(source, headers, body, now_ms)

    async def admit(self, authenticated: Authenticated) -> Outcome:
        """Take in what could be verified only some time after its receipt; raises StoreError."""
        content, skew_s, secret = authenticated
        self._metrics.skew(content.source, skew_s)
        self._metrics.verified(content.source, secret)
        self.traffic.verified(content.source, skew_s, now_ms=self._clock.now_ms())
        if isinstance(content, Event):
            return await self._accept(content, self._terms.routes)
        return await self._keep(content)

    async def _store_it(self, content: Event | Unreadable, routes: Sequence[Route]) -> Response:
        self._storing += 1
        try:
            if isinstance(content, Event):
                return responses.acknowledgement(await self._accept(content, routes), content.id)
            return responses.acknowledgement(await self._keep(content), None)
        finally:
            self._storing -= 1

    def trusts(self, address: str) -> bool:
        """Whether the address is a trusted proxy's."""
        return address in self._terms.proxies.trusted_hosts

    def is_busy(self) -> bool:
        """Whether so many verified requests wait for the store that deliveries should give way."""
        return self._storing > BUSY

    async def _accept(self, event: Event, routes: Sequence[Route]) -> Outcome:
        verdicts = match(event, routes)
        return await self._store.accept(
            event, verdicts, lambda outcome: self._accepted(event, verdicts, outcome)
        )

    def _accepted(self, event: Event, verdicts: Sequence[Verdict], outcome: Outcome) -> None:
        """Count and wake, once it is durable, whether or not the sender still waits."""
        self._metrics.received(event.source, event.known_kind, outcome)
        if outcome == "accepted":
            for verdict in verdicts:
                self._wake(verdict.sink)
        if self._activity.watched:
            sinks = [verdict.sink for verdict in verdicts] if outcome == "accepted" else []
            self._activity.publish(
                outcome,
                at_ms=event.received_ms,
                source=event.source,
                id=event.id,
                kind=event.kind,
                sinks=sinks,
            )
        if outcome == "conflict":
            self._log.warning("event.conflict", source=event.source, id=event.id, kind=event.kind)

    async def _keep(self, request: Unreadable) -> Outcome:
        return await self._store.keep(request, lambda outcome: self._kept(request, outcome))

    def _kept(self, request: Unreadable, outcome: Outcome) -> None:
        self._metrics.received(request.source, "other", outcome)
        told = {"source": request.source, "id": request.short_id, "reason": request.reason}
        self._activity.publish(outcome, at_ms=request.received_ms, **told)
        self._log.warning("event.unreadable", **told)

    def _fail(self, event: str, source: str, error: Exception, /, **fields: str) -> None:
        # Limited like the refusals, because a full disk fails every request.
        reason = type(error).__name__
        self._sampled.line(event, reason=reason, level="error", source=source, **fields)

    async def _refuse(
        self, source: str, reason: str, scope: Scope, *, skew_s: int | None = None
    ) -> Response:
        given = responses.refusal(reason)
        self._activity.publish("refused", source=source, code=given.code, reason=reason)
        self._metrics.rejected(source, reason)
        self._sampled.line(
            "request.refused",
            source=source,
            code=given.code,
            reason=reason,
            skew_s=skew_s,
            client=await self._client(scope),
            request_id=_request_id(scope["headers"]),
        )
        return given

    async def _client(self, scope: Scope) -> str | None:
        # Looked up only for a line of the log, since every request would pay for it otherwise.
        await self._terms.proxies(cast("Any", scope), _nothing, _nothing)
        host = (scope.get("client") or ("",))[0]
        # A proxy may hand on what a stranger typed as an address.
        return host if _ADDRESS.fullmatch(host) else None


async def _read(headers: Headers, receive: Receive, *, limit: int) -> bytes:
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


async def _nothing(*_: object) -> Any:
    pass


def _paths(source: SourceSettings) -> tuple[bytes, ...]:
    path = source.path.rstrip("/").encode()
    return (path, path + b"/") if path else (b"/",)


def _declared(headers: Headers) -> int:
    # The server has refused whatever is not a number before.
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _request_id(headers: Headers) -> str | None:
    value = next((value for name, value in headers if name == b"x-request-id"), b"")
    return value.decode() if _REQUEST_ID.fullmatch(value) else None
