"""Decides after an attempt: delivered, due again at a later time, parked, or dead.

A series of refusals may be the destination's fault: `RefusalStreak` tells them from an event's own.
"""

from random import Random
from typing import Literal

import msgspec

from relay.core.config_values import Duration
from relay.core.delivery import Delivery, Result
from relay.core.errors import (
    Misconfigured,
    Refused,
    RefusesAll,
    SinkError,
    Temporary,
)

JITTER = 0.1
"""Maximum share added to a wait; never subtracted, so that no retry comes too early."""

RETRY_AFTER_CAP_MS = 3_600_000
"""Longest Retry-After that is honoured, in milliseconds."""

PROBE_MAX_MS = 60_000
"""Longest wait before a probe of a failing sink, in milliseconds."""

FAILURE_THRESHOLD = 5
"""Consecutive failures, of distinct events, that are blamed on the sink, not on its events."""

SUSPECT_MIN_AGE_MS = 15 * 60_000
SUSPECT_MIN_TRIES = 20
"""Minimum age and attempts before an event with 401, 403, 404 or the like becomes a dead letter.

Only attempts count between which the sink accepted other events. Of two replicas behind a load
balancer, one may be misconfigured: 20 failures in a row then happen once in a million events.
"""

Standing = Literal["untried", "tried", "suspect"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sink.retry]`: waits of first, first * factor, ... up to max, until give_up_after."""

    first: Duration = Duration.parse("1s")
    factor: float = 2.0
    max: Duration = Duration.parse("1h")
    give_up_after: Duration = Duration.parse("3d")
    """Counted from the first attempt that is not blamed on the sink, or that was refused.

    An event may wait long in the backlog before it, and that alone must not give it up.
    """

    @property
    def longest_ms(self) -> int:
        """The longest possible wait, jitter included."""
        return int(self.max * (1 + JITTER))


class Decision(msgspec.Struct, frozen=True):
    """The result of an attempt; `due_ms` is the next due time of a delivery that stays pending."""

    result: Result
    due_ms: int
    reason: str = ""
    counts: bool = True
    """False if the attempt is blamed on the sink rather than the event."""


def standing(delivery: Delivery, taken_ms: int | None) -> Standing:
    """Classify a delivery; it is suspect if its sink accepted another event since its failure.

    `taken_ms` is the time of the sink's last success.
    """
    if not delivery.tries:
        return "untried"
    if taken_ms is None or delivery.tried_ms is None or taken_ms < delivery.tried_ms:
        return "tried"
    return "suspect"


def result_of(error: SinkError, *, refuses_all: bool = False) -> Result:
    """Return the result of a first attempt that fails with this error.

    With `refuses_all`, the destination is to blame for a refusal, because it refuses every event.
    """
    match error:
        case Refused():
            return "parked" if refuses_all else "dead"
        case Misconfigured():
            return "parked"
        case _:
            return "retry"


def backoff_ms(policy: RetryPolicy, tries: int, *, random: Random) -> int:
    """Return the wait after this many failed attempts (1 or more), jitter included."""
    # The exponent is bounded because a float overflows long before an operator gives up.
    wait = min(policy.first * policy.factor ** min(tries - 1, 64), policy.max)
    return int(wait * (1 + JITTER * random.random()))


def decide(
    delivery: Delivery,
    error: SinkError | None,
    policy: RetryPolicy,
    *,
    standing: Standing,
    probing: bool,
    started_ms: int,
    now_ms: int,
    random: Random,
) -> Decision:
    """Decide what follows a finished attempt; `error` is None for a confirmed delivery.

    `probing` means that the sink was throttled or parked when the attempt started.
    """
    match error:
        case None:
            return Decision("delivered", now_ms)
        case Refused():
            return Decision("dead", now_ms, error.reason)
    first_ms = started_ms if delivery.first_attempt_ms is None else delivery.first_attempt_ms
    age_ms = now_ms - first_ms
    soon_ms = now_ms + min(backoff_ms(policy, delivery.tries + 1, random=random), PROBE_MAX_MS)
    if error.unsent:
        due_ms = max(soon_ms, now_ms + _asked_ms(error))
        return Decision(result_of(error), due_ms, error.reason, counts=False)
    if isinstance(error, RefusesAll):
        if delivery.first_attempt_ms is not None and age_ms >= policy.give_up_after:
            return Decision("dead", now_ms, f"gave up: {error.reason}")
        # Only the first one counts: it starts `give_up_after`, and more would make a suspect.
        return Decision("parked", soon_ms, error.reason, delivery.first_attempt_ms is None)
    if isinstance(error, Misconfigured):
        if standing != "suspect":
            return Decision("parked", soon_ms, error.reason, counts=False)
        if age_ms >= SUSPECT_MIN_AGE_MS and delivery.attempts + 1 >= SUSPECT_MIN_TRIES:
            return Decision("dead", now_ms, f"gave up, others are taken: {error.reason}")
        return Decision("retry", soon_ms, error.reason)
    counts = standing == "suspect" or not probing
    if age_ms >= policy.give_up_after and (counts or delivery.first_attempt_ms is not None):
        return Decision("dead", now_ms, f"gave up: {error.reason}")
    due_ms = (
        now_ms + backoff_ms(policy, delivery.attempts + 1, random=random) if counts else soon_ms
    )
    due_ms = max(due_ms, now_ms + _asked_ms(error))
    return Decision("retry", due_ms, error.reason, counts)


def _asked_ms(error: SinkError) -> int:
    """Return the wait that the destination asked for, bounded; 0 without one."""
    asked_ms = error.retry_after_ms if isinstance(error, Temporary) else None
    return min(asked_ms or 0, RETRY_AFTER_CAP_MS)


class Refusals(msgspec.Struct, frozen=True):
    """Refusals that are the destination's fault."""

    reason: str | None
    """Of the events that became dead letters before; None where they have several, or the relay
    has started since."""


class RefusalStreak:
    """Refusals of distinct events in a row, with no success between them.

    The first ones are the events' own. From `FAILURE_THRESHOLD` on, all are the destination's,
    until its next success, and the circuit breaker parks the sink: so at most four events in a row
    become dead letters for nothing.
    """

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}
        """Of the events that were refused for their own fault."""
        self._is_destinations = False

    @property
    def refusals(self) -> Refusals | None:
        """None while a refusal is an event's own."""
        if not self._is_destinations:
            return None
        reasons = set(self._reasons.values())
        return Refusals(reasons.pop() if len(reasons) == 1 else None)

    def resume(self) -> None:
        """Take refusals for the destination's: it took nothing when the relay last knew of it."""
        self._is_destinations = True

    def end(self) -> None:
        """Begin anew after a success."""
        if self._is_destinations or self._reasons:
            self._reasons.clear()
            self._is_destinations = False

    def judge(self, error: SinkError | None, *, event: int, counts: bool) -> SinkError | None:
        """Return the error, or `RefusesAll` in place of a refusal that is the destination's.

        `counts` is False for an event whose refusal says nothing about the destination.
        """
        if not isinstance(error, Refused):
            return error
        if not self._is_destinations:
            if not counts or event in self._reasons:
                return error
            if len(self._reasons) + 1 < FAILURE_THRESHOLD:
                self._reasons[event] = error.reason
                return error
            self._is_destinations = True
        finding = "nothing can be sent of any event" if error.unsent else "it refuses every event"
        return RefusesAll(
            f"{finding}: {error.reason}",
            status=error.status,
            answer=error.answer,
            about_event=True,
        )
