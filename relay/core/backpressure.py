"""Backpressure from the receiver on deliveries."""

from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.delivery_credit import DeliveryCredit

THRESHOLD = 8
"""Verified requests waiting for the store; a sender with a few connections stays below it."""


class Backpressure:
    """Counts verified requests that wait for the store; dispatchers yield while there are many."""

    def __init__(self) -> None:
        self._waiting = 0
        self.credit = DeliveryCredit()
        """What dispatchers may start all the same."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one more request during the block; unless it raises, the request earns credit."""
        self._waiting += 1
        try:
            yield
            self.credit.earn()
        finally:
            self._waiting -= 1

    def is_high(self) -> bool:
        """Whether deliveries should yield to requests."""
        return self._waiting > THRESHOLD
