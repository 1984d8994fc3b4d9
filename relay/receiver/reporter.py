"""Metrics, log lines and the activity stream of requests: one method per fact."""

import hashlib
from collections.abc import Sequence
from typing import Any

from relay.core.acceptance import AcceptanceHealth
from relay.core.clock import Clock
from relay.core.delivery_rules import TIMEOUT_S, WAITS_S
from relay.core.errors import Rejected, StoreError
from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import UNKNOWN, Metrics
from relay.telemetry.traffic import Traffic

_HEAD_FAULTS = {431: "headers"}
"""Refusals that a sender or a proxy can meet although its HTTP is valid."""

BODIES_MAX = 4096
"""Most recent bodies remembered; about 1 MiB in all."""

_EARLY = 0.9
_LATE = 1.1


class RequestReporter:
    """Reports on all sources; no method can fail a request."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        activity: ActivityStream,
        traffic: Traffic,
        health: AcceptanceHealth,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._activity = activity
        self._traffic = traffic
        self._health = health
        self._clock = clock
        self._mismatches = Mismatches()
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    def responded(self, source: str, code: int, *, seconds: float) -> None:
        """A response is about to be sent; `seconds` have passed since the request's head."""
        self._metrics.request(source, code)
        if code < 300:
            self._metrics.acknowledged(source, seconds)

    def verified(self, source: str, *, skew_s: float, secret: str, now_ms: int) -> None:
        """A request has a good signature, made with the secret of this label."""
        self._metrics.skew(source, skew_s)
        self._metrics.verified(source, secret)
        self._traffic.verified(source, skew_s, now_ms=now_ms)

    def rejected(self, source: str, error: Rejected, body: bytes, *, now_ms: int) -> None:
        """A request's signature is refused."""
        retried = error.reason == "mismatch" and self._mismatches.is_retry(
            source, body, self._clock.monotonic()
        )
        self._traffic.refused(source, skew_s=error.skew_s, retried=retried, now_ms=now_ms)
        if retried:
            self._metrics.mismatch_retried(source)

    def refused(
        self, source: str, reason: str, *, code: int, skew_s: int | None, **caller: Any
    ) -> None:
        """A request is not accepted; `caller` names the client and the request in the log."""
        if skew_s is not None:
            self._metrics.skew(source, skew_s)
        self._activity.publish("refused", source=source, code=code, reason=reason)
        self._metrics.rejected(source, reason)
        self._sampled.line(
            "request.refused",
            source=source,
            code=code,
            reason=reason,
            skew_s=skew_s,
            **caller,
        )

    def not_http(self, code: int, client: str) -> None:
        """A request was refused by its head, before its path was known."""
        self._metrics.not_http(code)
        reason = _HEAD_FAULTS.get(code)
        if reason is not None:
            self.refused(UNKNOWN, reason, code=code, skew_s=None, client=client or None)

    def acknowledging(self, outcome: Outcome) -> None:
        """A request was stored in time."""
        # Only a new event proves that one can be stored: a known one may need no room.
        if outcome == "accepted":
            self._health.succeed()

    def unavailable(self, source: str, error: StoreError, *, size: int) -> None:
        """The store cannot accept the request, whose body has this size."""
        self._health.fail(error, size)
        # Sampled like the refusals, because a full disk fails every request.
        self._fail("store.unavailable", source, error, message=str(error))

    def bug(self, source: str, error: Exception) -> None:
        """A request failed because of a bug."""
        self._metrics.rejected(source, "unavailable")
        self._fail("receiver.bug", source, error, **log.describe(error))

    def _fail(self, event: str, source: str, error: Exception, /, **fields: str) -> None:
        reason = type(error).__name__
        self._sampled.line(event, reason=reason, level="error", source=source, **fields)

    def stored(self, event: Event, verdicts: Sequence[Verdict], outcome: Outcome) -> None:
        """An event is on disk, now or since an earlier request."""
        self._metrics.received(event.source, event.known_kind, outcome)
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
        else:
            self._activity.count(outcome)
        if outcome == "conflict":
            self._log.warning("event.conflict", source=event.source, id=event.id, kind=event.kind)

    def kept(self, request: Unreadable, outcome: Outcome) -> None:
        """A verified request without a usable event is on disk."""
        self._metrics.received(request.source, "other", outcome)
        fields = {"source": request.source, "id": request.short_id, "reason": request.reason}
        self._activity.publish(outcome, at_ms=request.received_ms, **fields)
        self._log.warning("event.unreadable", **fields)


class Mismatches:
    """Recognizes the sender's own retries among requests that matched no secret.

    A stranger can send any number of them, but hardly the same body after exactly its waits.
    """

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, bytes], float] = {}

    def is_retry(self, source: str, body: bytes, now_s: float) -> bool:
        """Record a request; True if the last one with its body was one of the sender's waits ago.

        `now_s` is of a monotonic clock.
        """
        key = (source, hashlib.sha256(body).digest())
        last_s = self._last_s.pop(key, None)
        self._last_s[key] = now_s
        if len(self._last_s) > BODIES_MAX:
            del self._last_s[next(iter(self._last_s))]
        return last_s is not None and _is_wait(now_s - last_s)


def _is_wait(gap_s: float) -> bool:
    return any(_EARLY * wait_s <= gap_s <= _LATE * wait_s + TIMEOUT_S for wait_s in WAITS_S)
