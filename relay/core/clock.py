"""The clock; all other modules take a `Clock` or a timestamp as a parameter."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for records, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; jumps when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        ...


SET_BACK_MS = 1000
"""Smallest step back that counts, in milliseconds; smaller ones are routine NTP corrections."""


class ClockSetBack:
    """Detects that the wall clock was set back, by comparing it with the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._measured()

    def happened(self) -> bool:
        """Return whether the clock was set back since the last call."""
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
