"""What becomes of a delivery after an attempt: delivered, again at T, parked or dead (pure)."""

from random import Random

import msgspec

from relay.delivery import Delivery, Result
from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.settings import Duration

JITTER = 0.1
"""Up to this share is added to a wait; never taken away, so that no far end is tried too early."""

RETRY_AFTER_CAP_MS = 3_600_000
"""A far end that asks for more than this is asked again after an hour all the same."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[sink.retry]`: waits of first, first * factor, ... up to max, until give_up_after."""

    first: Duration = Duration.parse("1s")
    factor: float = 2.0
    max: Duration = Duration.parse("1h")
    give_up_after: Duration = Duration.parse("3d")
    """Counted from the first attempt, so that an event that had to wait its turn gets its tries."""


class Decision(msgspec.Struct, frozen=True):
    """`due_ms` is when a delivery that stays pending comes due again."""

    result: Result
    due_ms: int
    reason: str = ""


def result_of(error: SinkError) -> Result:
    """What an event's first attempt that failed so is."""
    match error:
        case Refused():
            return "dead"
        case Misconfigured():
            return "parked"
        case _:
            return "retry"


def backoff_ms(policy: RetryPolicy, tries: int, *, dice: Random) -> int:
    """How long to wait after the given number of failed tries (1 or more), jitter included."""
    # The exponent is bounded because a float overflows long before an operator gives up.
    wait = min(policy.first * policy.factor ** min(tries - 1, 64), policy.max)
    return int(wait * (1 + JITTER * dice.random()))


def decide(
    delivery: Delivery,
    error: SinkError | None,
    policy: RetryPolicy,
    *,
    started_ms: int,
    now_ms: int,
    dice: Random,
) -> Decision:
    """Judge one finished attempt; `error` is None for one that the far end confirmed."""
    match error:
        case None:
            return Decision("delivered", now_ms)
        case Refused():
            return Decision("dead", now_ms, error.reason)
        case Misconfigured():
            return Decision("parked", now_ms, error.reason)
        case Temporary(retry_after_ms=asked):
            due = now_ms + backoff_ms(policy, delivery.attempts + 1, dice=dice)
            if asked is not None:
                due = max(due, now_ms + min(asked, RETRY_AFTER_CAP_MS))
        case _:
            due = now_ms + backoff_ms(policy, delivery.attempts + 1, dice=dice)
    first_ms = started_ms if delivery.first_attempt_ms is None else delivery.first_attempt_ms
    if now_ms - first_ms >= policy.give_up_after:
        return Decision("dead", now_ms, f"gave up: {error.reason}")
    return Decision("retry", due, error.reason)
