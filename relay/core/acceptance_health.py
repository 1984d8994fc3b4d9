"""Whether the store has taken the last events: known to the receiver, asked by readiness checks."""

import math

from relay.core.clock import Clock
from relay.core.errors import StoreError


class AcceptanceHealth:
    """Shared by those who accept events and those who say whether any can be."""

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
