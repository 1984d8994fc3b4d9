"""Limits on one sink's sends: when the next may start, and how many may be in flight."""

import math

from relay.core.config_values import Rate

_TIMER_RESOLUTION_S = 1e-6

UNSETTLED_PER_SLOT = 4
UNSETTLED_MAX = 256
"""Unsettled outcomes allowed per slot, and in total."""


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
