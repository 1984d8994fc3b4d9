"""When to poll for new deliveries, and when to notify other members of them."""

import math
from collections.abc import Iterable

from relay.core.cluster.timing import (
    NOTIFY_GAP_S,
    POLL_FAST_FOR_S,
    POLL_MAX_S,
    POLL_MIN_S,
    RETRY_S,
)


class PollSchedule:
    """One poll for all sinks of a member: often while deliveries come, seldom in a quiet time."""

    def __init__(self) -> None:
        self._interval_s = POLL_MAX_S
        self._news_s = -math.inf
        self.due_s = -math.inf

    def news(self, now_s: float) -> None:
        """Record that a new delivery was seen, on whatever way."""
        self._news_s = now_s
        self._interval_s = POLL_MIN_S
        self.due_s = min(self.due_s, now_s + POLL_MIN_S)

    def answered(self, now_s: float) -> None:
        if now_s - self._news_s >= POLL_FAST_FOR_S:
            self._interval_s = min(2 * self._interval_s, POLL_MAX_S)
        self.due_s = now_s + self._interval_s

    def lost(self, now_s: float) -> None:
        self.due_s = now_s + RETRY_S


class NotifySchedule:
    """Coalesces notifications; a lost one costs at most the wait for the next poll."""

    def __init__(self) -> None:
        self._sinks: set[str] = set()
        self._gap_until_s = -math.inf

    @property
    def due_s(self) -> float:
        return self._gap_until_s if self._sinks else math.inf

    def add(self, sinks: Iterable[str]) -> None:
        self._sinks.update(sinks)

    def take(self, now_s: float) -> tuple[str, ...]:
        """Return the sinks of the notification that is sent now."""
        sinks, self._sinks = tuple(sorted(self._sinks)), set()
        self._gap_until_s = now_s + NOTIFY_GAP_S
        return sinks
