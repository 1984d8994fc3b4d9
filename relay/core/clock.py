"""The only place that asks what time it is; everything else is handed a `Clock` or a number."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one to write down, one to measure with."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; can jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


SET_BACK_MS = 1000
"""A clock that goes back by less is being corrected, as it is all the time."""


class SetBack:
    """Notices that the machine's clock was set back, by the one that never goes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._measured()

    def happened(self) -> bool:
        """Whether it was set back since the last call."""
        before, self._ahead_ms = self._ahead_ms, self._measured()
        return before - self._ahead_ms > SET_BACK_MS

    def _measured(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
