"""Time limits for many waits on one timer: a timer each would cost more than a signature."""

import asyncio
from types import TracebackType
from typing import Self

from relay.core.clock import Clock

TICK_S = 0.1
"""So much later than asked a limit may strike."""


class Deadlines:
    """Hands out limits, as `asyncio.timeout` does, and looks at all of them once per tick."""

    def __init__(self, clock: Clock) -> None:
        """To be made where the loop runs."""
        # CPython 3.11 makes a system call whenever it is asked which loop runs.
        self.loop = asyncio.get_running_loop()
        self._clock = clock
        self._open: set[Deadline] = set()
        self._ticking = False

    def within(self, seconds: float) -> "Deadline":
        """Limit what the `with` block awaits; raises TimeoutError out of it."""
        return Deadline(self, seconds)

    def now_s(self) -> float:
        return self._clock.monotonic()

    def add(self, deadline: "Deadline") -> None:
        self._open.add(deadline)
        if not self._ticking:
            self._ticking = True
            self._tick_later()

    def remove(self, deadline: "Deadline") -> None:
        self._open.discard(deadline)

    def _tick_later(self) -> None:
        self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s = self.now_s()
        for deadline in [late for late in self._open if late.at_s <= now_s]:
            self._open.discard(deadline)
            deadline.strike()
        self._ticking = bool(self._open)
        if self._ticking:
            self._tick_later()


class Deadline:
    """One limit on the current task."""

    __slots__ = ("_deadlines", "_struck", "_task", "at_s")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._deadlines = deadlines
        self._struck = False
        self._task = asyncio.current_task(deadlines.loop)
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """Start again with so many seconds from now."""
        self.at_s = self._deadlines.now_s() + seconds

    def strike(self) -> None:
        self._struck = True
        if self._task is not None:
            self._task.cancel()

    def __enter__(self) -> Self:
        self._deadlines.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadlines.remove(self)
        if not self._struck or self._task is None:
            return
        # A cancellation that came from elsewhere as well is not ours to swallow.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error
