"""What becomes of a delivery after an attempt: delivered, again at T, parked or dead (pure)."""

from random import Random
from typing import Literal

import msgspec

from relay.core.config_values import Duration
from relay.core.delivery import Delivery, Result
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary

JITTER = 0.1
"""Up to this share is added to a wait; never taken away, so that no far end is tried too early."""

RETRY_AFTER_CAP_MS = 3_600_000
"""A far end that asks for more than this is asked again after an hour all the same."""

PROBE_MAX_MS = 60_000
"""Longest wait for a try that may show that the sink is well again."""

SUSPECT_MIN_AGE_MS = 15 * 60_000
SUSPECT_MIN_TRIES = 20
"""An event that is answered 401, 403, 404 or the like is given up after this long and this many.

Only tries between which the sink took other events count. Of two replicas behind a balancer one may
be misconfigured: an event that half of all tries fail meets it 20 times in a row once in a million.
"""

Standing = Literal["untried", "tried", "suspect"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sink.retry]`: waits of first, first * factor, ... up to max, until give_up_after."""

    first: Duration = Duration.parse("1s")
    factor: float = 2.0
    max: Duration = Duration.parse("1h")
    give_up_after: Duration = Duration.parse("3d")
    """Counted from the first attempt, so that an event that had to wait its turn gets its tries."""

    @property
    def longest_ms(self) -> int:
        """The longest wait that the policy can make, jitter included."""
        return int(self.max * (1 + JITTER))


class Decision(msgspec.Struct, frozen=True):
    """`due_ms` is when a delivery that stays pending comes due again."""

    result: Result
    due_ms: int
    reason: str = ""
    counts: bool = True
    """False where the attempt is blamed on the sink rather than on the event."""


def standing(delivery: Delivery, taken_ms: int | None) -> Standing:
    """Suspect an event that has failed, and since then its sink took another, at `taken_ms`."""
    if not delivery.tries:
        return "untried"
    if taken_ms is None or delivery.tried_ms is None or taken_ms < delivery.tried_ms:
        return "tried"
    return "suspect"


def result_of(error: SinkError) -> Result:
    """What an event's first attempt that failed so is."""
    match error:
        case Refused():
            return "dead"
        case Misconfigured():
            return "parked"
        case _:
            return "retry"


def backoff_ms(policy: RetryPolicy, tries: int, *, random: Random) -> int:
    """How long to wait after the given number of failed tries (1 or more), jitter included."""
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
    """Judge one finished attempt; `error` is None for one that the far end confirmed.

    `probing` says that the sink was throttled or parked when the attempt began.
    """
    match error:
        case None:
            return Decision("delivered", now_ms)
        case Refused():
            return Decision("dead", now_ms, error.reason)
    first_ms = started_ms if delivery.first_attempt_ms is None else delivery.first_attempt_ms
    age_ms = now_ms - first_ms
    soon_ms = now_ms + min(backoff_ms(policy, delivery.tries + 1, random=random), PROBE_MAX_MS)
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
    if isinstance(error, Temporary) and error.retry_after_ms is not None:
        due_ms = max(due_ms, now_ms + min(error.retry_after_ms, RETRY_AFTER_CAP_MS))
    return Decision("retry", due_ms, error.reason, counts)
