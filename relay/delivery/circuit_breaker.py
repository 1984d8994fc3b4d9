"""Whether a sink may be tried now: all that is due, probes while it fails, or nothing.

Its rate and its slots limit how many sends start and are in flight.

Times are seconds of a monotonic clock, passed in.
"""

import math
from random import Random
from typing import NamedTuple

import msgspec

from relay.core.config_values import Rate
from relay.core.errors import Misconfigured, Refused, RefusesAll, SinkError, Temporary
from relay.core.retry import (
    FAILURE_THRESHOLD,
    PROBE_MAX_MS,
    RETRY_AFTER_CAP_MS,
    RetryPolicy,
    Standing,
    backoff_ms,
)
from relay.core.sink_status import State

_TIMER_RESOLUTION_S = 1e-6

UNSETTLED_PER_SLOT = 4
UNSETTLED_MAX = 256
"""Unsettled outcomes allowed per slot, and in total."""


class RateLimit:
    """Spaces starts evenly and saves nothing up; without a rate it delays nothing."""

    def __init__(self, rate: Rate | None) -> None:
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._next_start_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next send may start."""
        return remaining_s(self._next_start_s, now_s)

    def cap(self, sends: int) -> int:
        """Return how many of this many sends may start together."""
        return min(sends, 1) if self._interval_s else sends

    def start(self, now_s: float) -> None:
        """Record that a send starts."""
        self._next_start_s = max(self._next_start_s, now_s) + self._interval_s


def remaining_s(at_s: float, now_s: float) -> float:
    """Return the seconds until then, or 0 where a timer could not wait for so short a time."""
    left_s = at_s - now_s
    return left_s if left_s > _TIMER_RESOLUTION_S else 0.0


class ConcurrencyLimit:
    """Counts the events in flight, and the batches that carry them."""

    def __init__(self, slots: int, batch: int) -> None:
        self._batch = batch
        self._batches_max = slots // batch
        self.unsettled_max = min(UNSETTLED_PER_SLOT * slots, UNSETTLED_MAX)
        self._batches = 0
        self.in_flight = 0

    def room(self, *, unsettled: int, alone: bool) -> int:
        """Return how many events may start as one batch; `alone` allows one and nothing beside."""
        if alone:
            return 0 if self.in_flight or unsettled else 1
        if self._batches == self._batches_max or unsettled >= self.unsettled_max:
            return 0
        return self._batch

    def begin(self, events: int) -> None:
        """Record that a batch of this many events starts."""
        self._batches += 1
        self.in_flight += events

    def end(self, events: int) -> None:
        """Record that a batch of this many events has ended."""
        self._batches -= 1
        self.in_flight -= events


PROBE_MAX_S = PROBE_MAX_MS / 1000
"""Longest wait between probes: a sink is back soon after its destination is."""

ROUND_MAX = 256
"""Largest round of probes; beyond it, the wait between rounds grows instead."""

ROUND_WAIT_S = 1.0
"""Longest wait between two rounds while they still grow."""

STABLE_AFTER_S = 60.0
"""A sink that fails again within this time resumes with rounds of the size it had reached."""


class SendCapacity(NamedTuple):
    """How many sends may start: of deliveries never tried, and of others."""

    untried: int
    tried: int


class Wait(NamedTuple):
    """Seconds until one more of each may start; infinity until one in flight ends."""

    untried_s: float
    tried_s: float


class Ticket(NamedTuple):
    """State of the breaker when a batch started, to be passed back with its outcome."""

    trips: int
    probing: bool
    """Whether the breaker was tripped."""


class _Round(msgspec.Struct):
    """Probes of one kind, which have failed as a round once all of them have."""

    at_s: float = -math.inf
    left: int = 1
    in_flight: int = 0
    failures: int = 0
    """Consecutive failed rounds after which the wait has grown."""

    def begin(self, at_s: float, size: int = 1) -> None:
        self.at_s, self.left, self.in_flight = at_s, size, 0

    def start(self, sends: int) -> None:
        self.left -= sends
        self.in_flight += sends

    def give_back(self) -> None:
        """Allow another probe in place of one that asked the destination nothing."""
        self.left += 1
        self.in_flight -= 1

    def fail_one(self) -> bool:
        """Record a failed probe; True if the round is over."""
        self.in_flight -= 1
        return not self.left and not self.in_flight

    def wait_s(self, now_s: float) -> float:
        return remaining_s(self.at_s, now_s) if self.left else math.inf


class CircuitBreaker:
    """Lets one sink's sends through or, once tripped, probes with waits between them.

    Deliveries never tried are probes of their own. A destination that answers may dislike these
    events only, so each failed round is followed by one of twice the size: events that it dislikes
    delay the others by about the logarithm of their number. A destination that does not answer
    gets one probe at a time, and deliveries that have failed are always tried one at a time.
    """

    def __init__(self, policy: RetryPolicy, rate: Rate | None, *, random: Random) -> None:
        self._policy = policy
        self._rate = RateLimit(rate)
        self._random = random
        self._failed_events: set[int] = set()
        """Events that failed since the last success."""
        self._unanswered = 0
        self._has_delivered = False
        self._trips = 0
        self._reset_s = -math.inf
        self._untried = _Round()
        self._tried = _Round()
        self._round_size = 1
        self._health: State = "active"
        self._paused = False

    @property
    def state(self) -> State:
        """`paused` by an operator, else the state that the sends have shown."""
        return "paused" if self._paused else self._health

    @property
    def is_tripped(self) -> bool:
        """Whether only probes may be sent; a pause does not trip the breaker."""
        return self._health != "active"

    @property
    def probe_at_s(self) -> float | None:
        """Time of the next probe of a throttled or parked sink."""
        return None if self.state in ("active", "paused") else self._tried.at_s

    def restore(self, state: State) -> None:
        """Begin in the state that sends had shown before a restart; probes are due at once."""
        self._health = state

    def pause(self) -> None:
        """Block all sends until `resume`; the outcomes of those in flight are still recorded."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def probe_now(self) -> None:
        """Make the next probes due now, even within a pause that the destination asked for."""
        self._untried.at_s = self._tried.at_s = -math.inf

    def wait(self, *, in_flight: int, now_s: float) -> Wait:
        """Return how long until one more send may start."""
        if self._paused:
            return Wait(math.inf, math.inf)
        wait_s = self._rate.wait_s(now_s)
        if not self.is_tripped:
            return Wait(wait_s, wait_s)
        tried_s = math.inf if in_flight else self._tried.wait_s(now_s)
        return Wait(max(wait_s, self._untried.wait_s(now_s)), max(wait_s, tried_s))

    def room(self, sends: int, *, in_flight: int, now_s: float) -> SendCapacity:
        """Return how many of this many sends may start now."""
        wait = self.wait(in_flight=in_flight, now_s=now_s)
        limit = self._rate.cap(sends)
        probes = (
            SendCapacity(self._untried.left, 1) if self.is_tripped else SendCapacity(limit, limit)
        )
        return SendCapacity(
            0 if wait.untried_s > 0 else min(limit, probes.untried),
            0 if wait.tried_s > 0 else min(limit, probes.tried),
        )

    def start(self, *, untried: int, tried: int, now_s: float) -> Ticket:
        """Record that one batch starts."""
        self._rate.start(now_s)
        if self.is_tripped:
            self._untried.start(untried)
            self._tried.start(tried)
        return Ticket(self._trips, self.is_tripped)

    def is_current(self, ticket: Ticket) -> bool:
        """Whether a send counts: not one that started before the breaker tripped."""
        return not self.is_tripped or ticket.trips == self._trips

    def record(
        self,
        error: SinkError | None,
        ticket: Ticket,
        *,
        event: int,
        standing: Standing,
        now_s: float,
    ) -> None:
        """Take the outcome of a send into account, unless it started before the breaker tripped."""
        if not self.is_current(ticket):
            return
        if error is not None and error.unsent and standing == "suspect":
            standing = "tried"  # no event is at fault, so that an earlier success proves nothing
        match error:
            case Refused(unsent=True):
                if self.is_tripped:
                    (self._untried if standing == "untried" else self._tried).give_back()
            case None | Refused():
                self._has_delivered |= error is None
                self._reset(now_s)
            case Temporary(retry_after_ms=int(retry_after_ms)):
                self._trip("throttled", 1, now_s)
                until_s = now_s + min(retry_after_ms, RETRY_AFTER_CAP_MS) / 1000
                self._untried.at_s = self._tried.at_s = max(self._tried.at_s, until_s)
            case _ if self.is_tripped:
                self._fail_probe(error, standing, now_s)
            case _ if standing != "suspect" and self._reaches_threshold(error, event):
                unstable = now_s - self._reset_s <= STABLE_AFTER_S
                size = self._round_size if unstable and error.about_event else 1
                self._trip(_state_for(error), size, now_s)

    def _reaches_threshold(self, error: SinkError, event: int) -> bool:
        """Count a failure; True once single events can no longer explain the failures."""
        if isinstance(error, RefusesAll):
            return True
        if isinstance(error, Misconfigured) and not (error.about_event and self._has_delivered):
            return True
        if error.about_event:
            self._failed_events.add(event)
        else:
            self._unanswered += 1
        return len(self._failed_events) + self._unanswered >= FAILURE_THRESHOLD

    def _reset(self, now_s: float) -> None:
        self._failed_events.clear()
        self._unanswered = 0
        if self.is_tripped:
            self._health = "active"
            self._reset_s = now_s
            self._untried.failures = self._tried.failures = 0

    def _trip(self, state: State, round_size: int, now_s: float) -> None:
        self._health = state
        self._round_size = round_size
        self._trips += 1
        self._tried.failures += 1
        wait_s = self._backoff_s(self._tried.failures)
        self._tried.begin(now_s + wait_s)
        self._untried.begin(now_s + min(wait_s, ROUND_WAIT_S), round_size)

    def _fail_probe(self, error: SinkError, standing: Standing, now_s: float) -> None:
        if standing != "suspect":
            self._health = _state_for(error)
        if standing != "untried":
            self._tried.failures += 1
            self._tried.begin(now_s + self._backoff_s(self._tried.failures))
        elif self._untried.fail_one():
            self._begin_round(error, now_s)

    def _begin_round(self, error: SinkError, now_s: float) -> None:
        """Schedule the next round of deliveries never tried, after one that failed whole."""
        untried = self._untried
        if error.about_event and self._round_size < ROUND_MAX:
            self._round_size *= 2
            wait_s = min(self._backoff_s(1), ROUND_WAIT_S)
        else:
            untried.failures += 1
            wait_s = self._backoff_s(untried.failures)
        if not error.about_event:
            self._round_size = 1
            self._tried.failures = max(self._tried.failures, untried.failures)
        untried.begin(now_s + wait_s, self._round_size)
        # Deliveries never tried go first, because their outcome says more about the sink.
        self._tried.at_s = max(self._tried.at_s, untried.at_s)

    def _backoff_s(self, failures: int) -> float:
        wait_s = backoff_ms(self._policy, failures, random=self._random) / 1000
        return min(wait_s, PROBE_MAX_S)


def _state_for(error: SinkError) -> State:
    return "parked" if isinstance(error, Misconfigured) else "throttled"
