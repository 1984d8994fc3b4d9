"""When the next transaction starts: a few waiting events gather first, as with `commit_delay`."""

import asyncio
import math
from collections.abc import Callable

INTERVAL_S = 0.008
"""Minimum time between the starts of two transactions while few writes wait, in seconds.

A transaction costs an fsync and two changes of thread, however few writes share it. At 500 events a
second, this gap takes a third off an event's processor time, for acknowledgements after 5 ms in
place of 1.
"""

BATCH_MIN = 4
"""Number of waiting writes that start a transaction at once."""

LATE_S = 0.002
"""Writes of callers who were answered together come within this time of each other, in seconds."""

SKIPS_MAX = 64
"""Maximum number of waits in a row that are skipped after one in vain."""


class CommitTimer:
    """Starts transactions one after another, some after a wait for more writes.

    A write after a pause never waits. Callers that queue their next write only after the last one
    is on disk would wait in vain each time, so after a wait that no late write joined, the next
    ones are skipped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        self._loop = loop
        self._start = start
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = -math.inf
        self._late_s = math.inf
        self._skips = 0
        self._skips_left = 0

    def schedule(self, waiting: int) -> None:
        """Start a transaction at once or soon; call it for each new number of waiting writes."""
        now_s = self._loop.time()
        if waiting >= BATCH_MIN or now_s >= self._next_s:
            self.start()
        elif self._timer is None:
            self._wait(now_s)
        elif now_s >= self._late_s:
            self._skips = self._skips_left = 0

    def start(self) -> None:
        """Start a transaction now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_s = self._loop.time() + INTERVAL_S
        self._start()

    def _wait(self, now_s: float) -> None:
        if self._skips_left:
            self._skips_left -= 1
            self.start()
            return
        # Unless a late write joins.
        self._skips = self._skips_left = min(2 * self._skips + 1, SKIPS_MAX)
        self._late_s = now_s + LATE_S
        self._timer = self._loop.call_at(self._next_s, self.start)
