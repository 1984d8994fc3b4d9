"""When to poll for new deliveries."""

import math

from relay.core.cluster.timing import (
    POLL_FAST_FOR_S,
    POLL_LISTENING_S,
    POLL_MAX_S,
    POLL_MIN_S,
    RETRY_S,
)


class PollSchedule:
    """Schedule of a member's polls: frequent while unannounced deliveries arrive."""

    def __init__(self) -> None:
        self._interval_s = POLL_MAX_S
        self._news_s = -math.inf
        self._is_listening = False
        self._is_announced = False
        """Whether deliveries were announced since the last look."""
        self.due_s = -math.inf

    def listens(self, now_s: float, *, is_listening: bool) -> None:
        """Note whether other members' announcements arrive."""
        if self._is_listening and not is_listening:
            self.due_s = min(self.due_s, now_s + RETRY_S)
        self._is_listening = is_listening

    def announced(self) -> None:
        """Note that the next look finds deliveries whose sinks are awake already."""
        self._is_announced = True

    def answered(self, now_s: float, *, is_news: bool) -> None:
        """Take an answer of a poll or a survey; `is_news`: there are new deliveries."""
        if is_news and not (self._is_listening and self._is_announced):
            self._news_s = now_s
            self._interval_s = POLL_MIN_S
        elif now_s - self._news_s >= POLL_FAST_FOR_S:
            longest_s = POLL_LISTENING_S if self._is_listening else POLL_MAX_S
            self._interval_s = min(2 * self._interval_s, longest_s)
        self._is_announced = False
        self.due_s = now_s + self._interval_s

    def lost(self, now_s: float) -> None:
        self.due_s = now_s + RETRY_S
