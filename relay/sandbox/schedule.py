"""All that happens later in the sandbox, in the order of the schedule's own time.

That time runs `speed` times as fast as the clock, stands still while the schedule is stopped, and
goes on after a restart where it was; it is never shown. Times that are shown are the clock's.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from relay.core.clock import Clock

Action = Callable[[], None]
"""Returns quickly; requests are begun by `Schedule.begin`."""

_ROUNDING_MS = 0.01
"""Makes up for the rounding of monotonic times, which are fractions of seconds."""


@runtime_checkable
class Steppable(Clock, Protocol):
    """A clock that moves only when it is stepped."""

    def step_to(self, ms: int) -> None:
        """Set the time to `ms` since the epoch, which is not earlier than now."""
        ...


@dataclass(order=True, slots=True)
class Timer:
    """An action that is due at a time of the schedule."""

    due_ms: int
    _number: int
    _action: Action | None = field(compare=False)

    def cancel(self) -> None:
        """Forget the action; may be called at any time."""
        self._action = None

    def fire(self) -> bool:
        """Run the action, once; returns whether there was one."""
        action, self._action = self._action, None
        if action is not None:
            action()
        return action is not None


class Schedule:
    """Runs actions when they are due: by `run` in real time, or by `run_until` in tests."""

    def __init__(self, clock: Clock, *, speed: float = 1.0, start_ms: int | None = None) -> None:
        """`start_ms` is the schedule's time when it was last written; default: the clock's."""
        self.clock = clock
        self.speed = speed
        self.is_stopped = False
        self.fired = 0
        """Actions that have run, and work that has ended: a change of the count is news."""
        self._base_ms = float(clock.now_ms() if start_ms is None else start_ms)
        self._base_s = clock.monotonic()
        self._timers: list[Timer] = []
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._wakeup = asyncio.Event()

    def now_ms(self) -> int:
        """Return the clock's time, which is what records say."""
        return self.clock.now_ms()

    def time_ms(self) -> int:
        """Return the schedule's own time, in which actions are due."""
        return math.floor(self._base_ms + self._elapsed_ms() + _ROUNDING_MS)

    def due_ms(self, wait_s: float) -> int:
        """Return the schedule's time after a wait, which `speed` shortens."""
        return self.time_ms() + math.ceil(wait_s * 1000)

    def after(self, wait_s: float, action: Action) -> Timer:
        """Run an action after a wait, which `speed` shortens."""
        return self.at(self.due_ms(wait_s), action)

    def at(self, due_ms: int, action: Action) -> Timer:
        """Run an action at a time of the schedule; at once if that is past."""
        self._count += 1
        timer = Timer(due_ms, self._count, action)
        heapq.heappush(self._timers, timer)
        self._wakeup.set()
        return timer

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the schedule; `run_until` waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def set_speed(self, speed: float) -> None:
        """Change the speed; the actions that are due later move with it."""
        self._rebase()
        self.speed = speed
        self._wakeup.set()

    def stop(self) -> None:
        """Let the schedule's time stand still; work that was begun goes on."""
        self._rebase()
        self.is_stopped = True
        self._wakeup.set()

    def resume(self) -> None:
        """Let the time go on after `stop`, from where it stood."""
        self._rebase()
        self.is_stopped = False
        self._wakeup.set()

    async def run(self) -> None:
        """Run actions in real time until cancelled; raises what an action or work raised."""
        while True:
            self._wakeup.clear()
            while self._fire_next(self.time_ms()):  # noqa: ASYNC110
                # Requests are served in between.
                await asyncio.sleep(0)
            self._raise_failure()
            try:
                async with asyncio.timeout(self._wait_s()):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def run_until(self, ms: int) -> None:
        """Step the clock to `ms`, and run each action on the way at its own time.

        The clock moves only once every request has been answered, so that none gets old under way.
        """
        if not isinstance(self.clock, Steppable):
            raise TypeError("only a clock that can be stepped can be run")
        await self.settle()
        while (due_ms := self._next_clock_ms()) is not None and due_ms <= ms:
            self.clock.step_to(due_ms)
            fired = 0
            while self._fire_next(self.time_ms()):
                fired += 1
            if not fired:  # by rounding, its time is a step away
                self.clock.step_to(due_ms + 1)
            await self.settle()
        self.clock.step_to(max(ms, self.clock.now_ms()))

    async def settle(self) -> None:
        """Wait for all work that was begun; raises what it raised."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._raise_failure()

    async def close(self) -> None:
        """Cancel the work that was begun, and forget all actions."""
        self._timers.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _elapsed_ms(self) -> float:
        if self.is_stopped:
            return 0.0
        return (self.clock.monotonic() - self._base_s) * 1000 * self.speed

    def _rebase(self) -> None:
        self._base_ms += self._elapsed_ms()
        self._base_s = self.clock.monotonic()

    def _fire_next(self, time_ms: int) -> bool:
        """Run the next action that is due; returns whether there was one."""
        while not self.is_stopped and self._timers and self._timers[0].due_ms <= time_ms:
            if heapq.heappop(self._timers).fire():
                self.fired += 1
                return True
        return False

    def _wait_s(self) -> float | None:
        if not self._timers or self.is_stopped:
            return None
        ahead_ms = self._timers[0].due_ms - self._base_ms - self._elapsed_ms()
        return max(0.0, ahead_ms / 1000 / self.speed)

    def _next_clock_ms(self) -> int | None:
        """Return the clock's time at which the next action is due; None without one."""
        wait_s = self._wait_s()
        if wait_s is None:
            return None
        return self.clock.now_ms() + math.ceil(round(wait_s * 1000, 3))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.fired += 1
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self._wakeup.set()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
