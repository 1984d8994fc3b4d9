"""How a sink is doing, as an operator sees it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["active", "throttled", "parked", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """One sink at one moment; times are milliseconds since the epoch."""

    name: str
    type: str | None
    """None for a sink that the config does not have."""
    state: State | Literal["not configured"]
    since_ms: int | None = None
    """When it came into its state, as far as this relay has seen it."""
    in_flight: int = 0
    delivered_last_minute: int = 0
    next_try_ms: int | None = None
    """When a sink that is throttled or parked is tried again."""
    last_error: str | None = None
    last_error_ms: int | None = None
    last_delivered_ms: int | None = None


class ThroughputWindow:
    """How many there were in the last minute, to the second, in constant memory."""

    WINDOW_S = 60

    def __init__(self) -> None:
        self._counts = [0] * self.WINDOW_S
        self._second = 0

    def add(self, count: int, now_s: float) -> None:
        self._forget(now_s)
        self._counts[self._second % self.WINDOW_S] += count

    def last_minute(self, now_s: float) -> int:
        self._forget(now_s)
        return sum(self._counts)

    def _forget(self, now_s: float) -> None:
        second = int(now_s)
        if second == self._second:
            return
        for passed in range(self._second + 1, min(second, self._second + self.WINDOW_S) + 1):
            self._counts[passed % self.WINDOW_S] = 0
        if second > self._second + self.WINDOW_S:
            self._counts = [0] * self.WINDOW_S
        self._second = max(self._second, second)
