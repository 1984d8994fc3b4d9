"""When a sink may be tried: its rate, and the one probe at a time while it fails (pure).

Times are seconds of a monotonic clock, handed in.
"""

import math
from random import Random
from typing import Literal

from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.retry import RETRY_AFTER_CAP_MS, RetryPolicy, backoff_ms
from relay.settings import Rate

State = Literal["active", "throttled", "parked", "paused"]

PATIENCE = 5
"""So many failed sends in a row, and it is the sink that fails rather than its events."""

PROBE_MAX_S = 60.0
"""A failing sink is probed at least this often, so that it is back soon after its far end is."""


class Gate:
    """One sink's door. It is open, or it lets one send through at a time and waits between them.

    While it is not open, the other deliveries keep their attempts.
    """

    def __init__(self, policy: RetryPolicy, rate: Rate | None, *, dice: Random) -> None:
        self._policy = policy
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._dice = dice
        self._next_start_s = -math.inf
        self._failures = 0
        self._closed_at_s = -math.inf
        self._probe_at_s = -math.inf
        self._found: State = "active"
        self._paused = False

    @property
    def state(self) -> State:
        """Paused by an operator, or what the sends have found."""
        return "paused" if self._paused else self._found

    def pause(self) -> None:
        """Let nothing through until `resume`; what is on its way still teaches."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def wait_s(self, *, in_flight: int, now_s: float) -> float:
        """How long until one more send may start: 0 for now, infinity until one in flight ends."""
        if self._paused:
            return math.inf
        wait_s = self._next_start_s - now_s
        if self._found != "active":
            if in_flight:
                return math.inf
            wait_s = max(wait_s, self._probe_at_s - now_s)
        return max(wait_s, 0.0)

    def allows(self, sends: int, *, in_flight: int, now_s: float) -> int:
        """How many of so many sends may start now."""
        if self.wait_s(in_flight=in_flight, now_s=now_s) > 0:
            return 0
        return min(sends, 1) if self._interval_s or self._found != "active" else sends

    def started(self, *, now_s: float) -> None:
        """Take note of a send for the rate."""
        self._next_start_s = max(self._next_start_s, now_s) + self._interval_s

    def ended(self, error: SinkError | None, *, started_s: float, now_s: float) -> None:
        """Learn from a send; one that began before the gate closed tells nothing new."""
        if self._found != "active" and started_s < self._closed_at_s:
            return
        match error:
            case None | Refused():
                self._failures = 0
                self._found = "active"
            case Misconfigured():
                self._close("parked", now_s)
            case Temporary(retry_after_ms=int(asked_ms)):
                self._close("throttled", now_s)
                floor_s = now_s + min(asked_ms, RETRY_AFTER_CAP_MS) / 1000
                self._probe_at_s = max(self._probe_at_s, floor_s)
            case _ if self._found != "active" or self._failures + 1 >= PATIENCE:
                self._close("throttled", now_s)
            case _:
                self._failures += 1

    @property
    def probe_at_s(self) -> float | None:
        """When a sink that is not active is tried again."""
        return None if self.state in ("active", "paused") else self._probe_at_s

    def _close(self, state: State, now_s: float) -> None:
        self._failures = 1 if self._found == "active" else self._failures + 1
        self._found = state
        self._closed_at_s = now_s
        wait_s = backoff_ms(self._policy, self._failures, dice=self._dice) / 1000
        self._probe_at_s = now_s + min(wait_s, PROBE_MAX_S)
