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


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
