"""Timeouts that share one timer, because a timer per request costs more than a signature.

Also timeouts of single requests within them: an attempt may need several, and ends in time if each
of them does.
"""

import asyncio
import math
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self

from relay.core.clock import Clock

TICK_S = 0.1
"""Resolution in seconds: a timeout may fire this much late."""


class Timeout(Protocol):
    """A timeout that can begin anew."""

    def restart(self) -> None:
        """Begin anew, with the timeouts around it."""
        ...


current_timeout: ContextVar[Timeout | None] = ContextVar("current_timeout", default=None)
"""The innermost timeout of what this task does."""


def restart() -> None:
    """Begin the current timeout anew, because one of the things that take time is done."""
    timeout = current_timeout.get()
    if timeout is not None:
        timeout.restart()


def note(came: str) -> None:
    """Record what part of an answer had arrived when the current timeout ended the wait."""
    timeout = current_timeout.get()
    if isinstance(timeout, Limit):
        timeout.came = came


class Limit:
    """Time limit for an answer, and a description of the part that had arrived by then."""

    __slots__ = ("_seconds", "came")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.came = ""

    def reason(self) -> str:
        """Return why there is no answer once the time is over."""
        if not self.came:
            return f"no answer within {self._seconds:g} s"
        return f"no whole answer within {self._seconds:g} s: {self.came}"


class RequestTimeout(Limit):
    """Limits one request, as `asyncio.timeout` does; the timeout around it begins anew."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._outer = current_timeout.get()
        self._timeout: asyncio.Timeout | None = None
        """While the block runs."""
        self._has_expired = False

    def expired(self) -> bool:
        return self._has_expired

    def restart(self) -> None:
        self.came = ""
        if self._outer is not None:
            self._outer.restart()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def __aenter__(self) -> Self:
        if self._outer is not None:
            self._outer.restart()
        self._timeout = await asyncio.timeout(self._seconds).__aenter__()
        self._token = current_timeout.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current_timeout.reset(self._token)
        # A connection that was opened within it keeps its context, and would keep the task by it.
        timeout, self._timeout, self._outer = self._timeout, None, None
        if timeout is not None:
            self._has_expired = timeout.expired()
            await timeout.__aexit__(kind, error, traceback)


class Deadlines:
    """Creates timeouts like `asyncio.timeout`, and checks all of them once per tick."""

    def __init__(self, clock: Clock) -> None:
        """Create it inside a running event loop."""
        # Kept, because `get_running_loop` costs a system call in CPython 3.11.
        self.loop = asyncio.get_running_loop()
        self._clock = clock
        self._open: set[Deadline] = set()
        self._ticking = False

    def within(self, seconds: float) -> "Deadline":
        """Limit the `with` block to this time; it raises TimeoutError."""
        return Deadline(self, seconds)

    def now_s(self) -> float:
        return self._clock.monotonic()

    def last_s(self) -> float:
        """Return when the last of the open ones strikes; minus infinity without one."""
        return max((deadline.at_s for deadline in self._open), default=-math.inf)

    def add(self, deadline: "Deadline") -> None:
        self._open.add(deadline)
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(TICK_S, self._tick)

    def remove(self, deadline: "Deadline") -> None:
        self._open.discard(deadline)

    def _tick(self) -> None:
        now_s = self.now_s()
        for deadline in [late for late in self._open if late.at_s <= now_s]:
            self._open.discard(deadline)
            deadline.strike()
        self._ticking = bool(self._open)
        if self._ticking:
            self.loop.call_later(TICK_S, self._tick)


class Deadline(Limit):
    """A timeout of the current task."""

    __slots__ = ("_deadlines", "_struck", "_task", "at_s")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        super().__init__(seconds)
        self._deadlines = deadlines
        self._struck = False
        self._task = asyncio.current_task(deadlines.loop)
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """Restart the timeout, from now."""
        self.at_s = self._deadlines.now_s() + seconds

    def restart(self) -> None:
        self.came = ""
        self.extend(self._seconds)

    def strike(self) -> None:
        self._struck = True
        if self._task is not None:
            self._task.cancel()

    def __enter__(self) -> Self:
        self._deadlines.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._deadlines.remove(self)
        task, self._task = self._task, None
        if not self._struck or task is None:
            return
        # Only our own cancellation becomes a TimeoutError; one from outside must propagate.
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error
