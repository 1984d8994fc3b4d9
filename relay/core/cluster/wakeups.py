"""When to poll for new deliveries."""

import math

from relay.core.cluster.timing import POLL_FAST_FOR_S, POLL_MAX_S, POLL_MIN_S, RETRY_S


class PollSchedule:
    """One poll for all sinks of a member: often while deliveries come, seldom in a quiet time."""

    def __init__(self) -> None:
        self._interval_s = POLL_MAX_S
        self._news_s = -math.inf
        self.due_s = -math.inf

    def answered(self, now_s: float, *, is_news: bool) -> None:
        """Take an answer; `is_news` says whether a sink has new deliveries."""
        if is_news:
            self._news_s = now_s
            self._interval_s = POLL_MIN_S
        elif now_s - self._news_s >= POLL_FAST_FOR_S:
            self._interval_s = min(2 * self._interval_s, POLL_MAX_S)
        self.due_s = now_s + self._interval_s

    def lost(self, now_s: float) -> None:
        self.due_s = now_s + RETRY_S
