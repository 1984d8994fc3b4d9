"""Even spacing of one sink's sends, to keep it within its configured rate."""

import math

from relay.core.config_values import Rate

_TIMER_RESOLUTION_S = 1e-6


class RateLimit:
    """Spaces starts evenly and saves nothing up; without a rate it delays nothing.

    Times are seconds of a monotonic clock, passed in.
    """

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
