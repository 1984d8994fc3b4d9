"""Backpressure from the receiver on deliveries."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.delivery_credit import DeliveryCredit

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
