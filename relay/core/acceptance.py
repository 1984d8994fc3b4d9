"""Acceptance as other parts see it: events waiting to be stored, and the last failure."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.clock import Clock
from relay.core.delivery_credit import DeliveryCredit
from relay.core.errors import StoreError

THRESHOLD = 32
"""Verified requests waiting for the store, some of which gather for a commit.

A sender with a few connections stays below it.
"""

RELIEF_S = 0.005
"""Time after which backpressure ends, if it is still low: requests that were answered together are
followed by as many new ones."""


class Backpressure:
    """Counts verified requests that wait for the store; dispatchers yield while there are many."""

    def __init__(self) -> None:
        self._waiting = 0
        self._is_high = False
        self._look: asyncio.TimerHandle | None = None
        self.credit = DeliveryCredit()
        """What dispatchers may start all the same."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one more request during the block; unless it raises, the request earns credit."""
        self._waiting += 1
        if self._waiting > THRESHOLD:
            self._is_high = True
        try:
            yield
            self.credit.earn()
        finally:
            self._waiting -= 1
            if self._waiting == THRESHOLD and self._look is None:
                loop = asyncio.get_running_loop()
                self._look = loop.call_later(RELIEF_S, self._relieve)

    def _relieve(self) -> None:
        self._look = None
        if self._waiting <= THRESHOLD:
            self._is_high = False
            self.credit.waive()

    def is_high(self) -> bool:
        """Whether deliveries should yield to requests."""
        return self._is_high


class AcceptanceHealth:
    """Whether the store has taken the last events: for those who say whether any can be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._succeeded_s = -math.inf
        self.failure: StoreError | None = None
        """The last failure since the last success."""
        self.failed_bytes = 0
        """Size of the largest body that failed since then."""
        self.failed_since_ms: int | None = None
        """Time of the first failure since then."""

    def succeed(self) -> None:
        """Note that a new event was stored in time."""
        self._succeeded_s = self._clock.monotonic()
        self.failure = None
        self.failed_bytes = 0
        self.failed_since_ms = None

    def fail(self, error: StoreError, size: int = 0) -> None:
        """Note that a request could not be stored, or not in time."""
        if self.failure is None:
            self.failed_since_ms = self._clock.now_ms()
        self.failure = error
        self.failed_bytes = max(self.failed_bytes, size)

    def is_proven(self, within_s: float) -> bool:
        """Whether an event was stored within the last seconds, and none has failed since."""
        return self.failure is None and self._clock.monotonic() - self._succeeded_s < within_s
