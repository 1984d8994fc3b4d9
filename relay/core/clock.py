"""The clock; all other modules take a `Clock` or a timestamp as a parameter."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """Wall-clock time for records, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; jumps when the clock is set."""
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


class Instant:
    """The moment of its creation, by a clock that may be set afterwards."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_s = clock.monotonic()
        self.first_ms = clock.now_ms()
        """Its time as of then, which never changes."""
        self._ms = self.first_ms

    @property
    def ms(self) -> int:
        """Its time by the present clock, so that its age is right."""
        ms = self._clock.now_ms() - round((self._clock.monotonic() - self._at_s) * 1000)
        if abs(ms - self._ms) > SET_BACK_MS:
            self._ms = ms
        return self._ms


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def offset_ms(clock: Clock, reference: Clock) -> int:
    """Return how far a clock is ahead of another one."""
    return 0 if clock is reference else clock.now_ms() - reference.now_ms()


boottime_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
"""Returns nanoseconds of a clock that cannot be set, and that counts the time of a suspension."""

DRIFT_PPM = 100
"""How fast two clocks may drift apart, in millionths: twice what a quartz usually does."""

_NS_PER_MS = 1_000_000


class ClockSample(NamedTuple):
    """A server's time since the epoch, and `boottime_ns` before the request and after the answer.

    The server read its clock somewhere in between: half of the round trip bounds the error of the
    middle, however unequal the two ways are.
    """

    before_ns: int
    server_ns: int
    after_ns: int


class SynchronizedClock:
    """A server's clock, estimated from samples; the machine's clock before the first one.

    By the machine's own clock, a member that was ten minutes behind would send nothing for as long,
    and report that all is well.

    The best sample counts until another one contradicts it or is much tighter. From there on, time
    is that of `boottime_ns`, so that a step of the machine's clock changes nothing. A step of the
    server's clock is one of the relay's.
    """

    def __init__(self, machine: Clock, *, elapsed_ns: Callable[[], int] = boottime_ns) -> None:
        """`elapsed_ns` takes the place of `boottime_ns`."""
        self.monotonic = machine.monotonic
        self._elapsed_ns = elapsed_ns
        self._sampled_ns = elapsed_ns()
        self._ahead_ns = machine.now_ms() * _NS_PER_MS - self._sampled_ns
        """The server's time less the elapsed one."""
        self._error_ns = sys.maxsize
        self._floor_ms = 0
        """Time until which the clock stands still, in place of a small step back."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; jumps when the server's clock is set."""
        now_ms = (self._ahead_ns + self._elapsed_ns()) // _NS_PER_MS
        if now_ms < self._floor_ms:
            return self._floor_ms
        return now_ms

    def adopt(self, sample: ClockSample) -> int:
        """Take a sample into account; return the step that it made, 0 for a mere correction."""
        error_ns = (sample.after_ns - sample.before_ns) // 2
        ahead_ns = sample.server_ns - sample.before_ns - error_ns
        drift_ns = (sample.after_ns - self._sampled_ns) * DRIFT_PPM // 1_000_000
        known_error_ns = self._error_ns + drift_ns
        contradicts = abs(ahead_ns - self._ahead_ns) > known_error_ns + error_ns
        if not contradicts and 2 * error_ns > known_error_ns:
            return 0
        before_ms = self.now_ms()
        step_ms = (ahead_ns + self._elapsed_ns()) // _NS_PER_MS - before_ms
        # Before the rest, because other threads read the clock meanwhile.
        if -SET_BACK_MS <= step_ms < 0:
            self._floor_ms = before_ms
        self._ahead_ns, self._error_ns, self._sampled_ns = ahead_ns, error_ns, sample.after_ns
        if abs(step_ms) <= SET_BACK_MS:
            return 0
        self._floor_ms = 0
        return step_ms
