"""When a sink may be tried: its rate, and the probes while it fails (pure).

Times are seconds of a monotonic clock, handed in.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from relay.core.config_values import Rate
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.retry import PROBE_MAX_MS, RETRY_AFTER_CAP_MS, RetryPolicy, Standing, backoff_ms
from relay.core.sink_status import State

PATIENCE = 5
"""Failures in a row, of as many events, that are the sink's rather than those of its events."""

PROBE_MAX_S = PROBE_MAX_MS / 1000
"""A failing sink is probed at least this often, so that it is back soon after its far end is."""

ROUND_MAX = 256
"""Largest round of probes; beyond it, they wait longer between rounds instead."""

ROUND_WAIT_S = 1.0
"""Longest wait between two rounds as long as they grow."""

_NO_WAIT_S = 1e-6

CALM_S = 60.0
"""A sink that fails again before this time is probed by rounds as large as before."""


class Room(NamedTuple):
    """How many sends may start: of deliveries never tried, and of others."""

    untried: int
    tried: int


class Wait(NamedTuple):
    """Seconds until one more may start, infinity until one in flight ends; as for `Room`."""

    untried_s: float
    tried_s: float


class Ticket(NamedTuple):
    """A send that has started, to be handed in with its outcome."""

    closing: int
    probing: bool
    """Whether the gate was closed."""


@dataclass(slots=True)
class _Round:
    """Probes of one kind, which have failed as a round once all of them have."""

    at_s: float = -math.inf
    left: int = 1
    in_flight: int = 0
    failures: int = 0
    """Rounds in a row after which the wait has grown."""

    def begin(self, at_s: float, size: int = 1) -> None:
        self.at_s, self.left, self.in_flight = at_s, size, 0

    def started(self, sends: int) -> None:
        self.left -= sends
        self.in_flight += sends

    def is_over(self) -> bool:
        """Take note of a failed probe."""
        self.in_flight -= 1
        return not self.left and not self.in_flight

    def wait_s(self, now_s: float) -> float:
        return _left_s(self.at_s, now_s) if self.left else math.inf


class CircuitBreaker:
    """One sink's circuit breaker: open, or it lets probes through and waits between them.

    Deliveries never tried are probes of their own. A destination that answers may dislike these
    events only, so each failed round is followed by one of twice the size: events that it dislikes
    delay the others by about the logarithm of their number. A destination that does not answer
    gets one probe at a time, and deliveries that have failed are always tried one at a time.
    """

    def __init__(self, policy: RetryPolicy, rate: Rate | None, *, random: Random) -> None:
        self._policy = policy
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._random = random
        self._next_start_s = -math.inf
        self._failed: set[int] = set()
        """Events that failed since something was taken."""
        self._unanswered = 0
        self._has_taken = False
        self._closing = 0
        self._opened_s = -math.inf
        self._untried = _Round()
        self._tried = _Round()
        self._size = 1
        self._found: State = "active"
        self._paused = False

    @property
    def state(self) -> State:
        """Paused by an operator, or what the sends have found."""
        return "paused" if self._paused else self._found

    @property
    def is_open(self) -> bool:
        """Whether all that is due may be sent; pausing closes no gate."""
        return self._found == "active"

    @property
    def probe_at_s(self) -> float | None:
        """When a sink that is not active is tried again."""
        return None if self.state in ("active", "paused") else self._tried.at_s

    def pause(self) -> None:
        """Let nothing through until `resume`; what is on its way still teaches."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def probe_now(self) -> None:
        """Make the next probes due now, whatever pause was asked for."""
        self._untried.at_s = self._tried.at_s = -math.inf

    def wait(self, *, in_flight: int, now_s: float) -> Wait:
        """How long until one more send may start."""
        if self._paused:
            return Wait(math.inf, math.inf)
        wait_s = _left_s(self._next_start_s, now_s)
        if self.is_open:
            return Wait(wait_s, wait_s)
        tried_s = math.inf if in_flight else self._tried.wait_s(now_s)
        return Wait(max(wait_s, self._untried.wait_s(now_s)), max(wait_s, tried_s))

    def room(self, sends: int, *, in_flight: int, now_s: float) -> Room:
        """How many of this many sends may start now."""
        wait = self.wait(in_flight=in_flight, now_s=now_s)
        most = min(sends, 1) if self._interval_s else sends
        probes = Room(most, most) if self.is_open else Room(self._untried.left, 1)
        return Room(
            0 if wait.untried_s > 0 else min(most, probes.untried),
            0 if wait.tried_s > 0 else min(most, probes.tried),
        )

    def started(self, *, untried: int, tried: int, now_s: float) -> Ticket:
        """Take note of one batch."""
        self._next_start_s = max(self._next_start_s, now_s) + self._interval_s
        if not self.is_open:
            self._untried.started(untried)
            self._tried.started(tried)
        return Ticket(self._closing, not self.is_open)

    def ended(
        self,
        error: SinkError | None,
        ticket: Ticket,
        *,
        event: int,
        standing: Standing,
        now_s: float,
    ) -> None:
        """Learn from a send; one that began before the gate closed tells nothing new."""
        if not self.is_open and ticket.closing != self._closing:
            return
        match error:
            case None | Refused():
                self._has_taken |= error is None
                self._open(now_s)
            case Temporary(retry_after_ms=int(asked_ms)):
                self._close("throttled", 1, now_s)
                self._hold(now_s + min(asked_ms, RETRY_AFTER_CAP_MS) / 1000)
            case _ if not self.is_open:
                self._probed(error, standing, now_s)
            case _ if standing != "suspect" and self._is_enough(error, event):
                soon = now_s - self._opened_s <= CALM_S
                self._close(_state(error), self._size if soon and error.about_event else 1, now_s)

    def _is_enough(self, error: SinkError, event: int) -> bool:
        """Whether the failures in a row can no longer be those of single events."""
        if isinstance(error, Misconfigured) and not (error.about_event and self._has_taken):
            return True
        if error.about_event:
            self._failed.add(event)
        else:
            self._unanswered += 1
        return len(self._failed) + self._unanswered >= PATIENCE

    def _open(self, now_s: float) -> None:
        self._failed.clear()
        self._unanswered = 0
        if not self.is_open:
            self._found = "active"
            self._opened_s = now_s
            self._untried.failures = self._tried.failures = 0

    def _close(self, state: State, size: int, now_s: float) -> None:
        self._found = state
        self._size = size
        self._closing += 1
        self._tried.failures += 1
        wait_s = self._backoff_s(self._tried.failures)
        self._tried.begin(now_s + wait_s)
        self._untried.begin(now_s + min(wait_s, ROUND_WAIT_S), size)

    def _hold(self, until_s: float) -> None:
        """Delay probes of either kind until then."""
        self._untried.at_s = max(self._tried.at_s, until_s)
        self._tried.at_s = self._untried.at_s

    def _probed(self, error: SinkError, standing: Standing, now_s: float) -> None:
        if standing != "suspect":
            self._found = _state(error)
        if standing != "untried":
            self._tried.failures += 1
            self._tried.begin(now_s + self._backoff_s(self._tried.failures))
        elif self._untried.is_over():
            self._begin_round(error, now_s)

    def _begin_round(self, error: SinkError, now_s: float) -> None:
        """Go on with deliveries never tried, where all that were in the last round failed."""
        untried = self._untried
        if error.about_event and self._size < ROUND_MAX:
            self._size *= 2
            wait_s = min(self._backoff_s(1), ROUND_WAIT_S)
        else:
            untried.failures += 1
            wait_s = self._backoff_s(untried.failures)
        if not error.about_event:
            self._size = 1
            self._tried.failures = max(self._tried.failures, untried.failures)
        untried.begin(now_s + wait_s, self._size)
        # Of deliveries never tried one can learn more.
        self._tried.at_s = max(self._tried.at_s, untried.at_s)

    def _backoff_s(self, failures: int) -> float:
        wait_s = backoff_ms(self._policy, failures, random=self._random) / 1000
        return min(wait_s, PROBE_MAX_S)


def _left_s(at_s: float, now_s: float) -> float:
    """How long until then; none at all where it is less than a timer can wait."""
    left_s = at_s - now_s
    return left_s if left_s > _NO_WAIT_S else 0.0


def _state(error: SinkError) -> State:
    return "parked" if isinstance(error, Misconfigured) else "throttled"
