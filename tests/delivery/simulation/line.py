"""What lies between a relay and its tables: clocks that are wrong, and round trips that take time.

All of it is virtual. A call that blocks its thread, as the stores' connections make them, runs at
once here; the clock is ahead by what it took until the loop has caught up.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import psycopg

from relay.store.postgres.connection import read_again
from relay.store.postgres.driver import Query, Steps
from tests.virtual_time import VirtualTime

START_MS = 1_772_443_800_000
"""The true time at the start of a run."""

T = TypeVar("T")


class SimulationLoop(VirtualTime):
    """Has no threads: what would run on one runs at once.

    Its callbacks are not measured, which takes longer than they do.
    """

    def run_in_executor(  # type: ignore[override]  # it has no threads to name
        self, executor: None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  the caller's, as from a thread
            done.set_exception(error)
        return done


class MachineClock:
    """The clock of one relay's machine; `error_ms` is how far it is ahead of the true time."""

    def __init__(self, error_ms: int = 0) -> None:
        self.error_ms = error_ms
        self._loop = asyncio.get_running_loop()
        self._ahead_s = 0.0

    def now_ms(self) -> int:
        return START_MS + round(self.monotonic() * 1000) + self.error_ms

    def monotonic(self) -> float:
        return self._loop.time() + self._ahead_s

    def elapsed_ns(self) -> int:
        """Stand for `boottime_ns`."""
        return round(self.monotonic() * 1e9)

    @contextmanager
    def blocking(self, ahead_s: float) -> Iterator[Callable[[float], None]]:
        """Run the block as a call whose thread is blocked for the seconds that it passes."""
        self._ahead_s = ahead_s

        def pass_time(seconds: float) -> None:
            self._ahead_s += seconds

        try:
            yield pass_time
        finally:
            self._ahead_s = 0.0


class Line:
    """One relay's way to its database."""

    def __init__(
        self, clock: MachineClock, random: Random, *, trip_s: float, log: Callable[[str], None]
    ) -> None:
        self.clock = clock
        """Of the relay's machine."""
        self.log = log
        """Takes a line of the trace for each call."""
        self.is_cut = False
        self.trip_s = trip_s
        """Mean time of a round trip with its statement."""
        self.random = random

    def trip(self) -> float:
        """Return the time of the next round trip."""
        return self.trip_s * self.random.uniform(0.7, 1.3)

    def require(self) -> None:
        """Raise what a lost connection raises."""
        if self.is_cut:
            raise psycopg.OperationalError("the connection was cut")


class BlockingConnection:
    """Stands for a `Connection` of either store: whole functions, one after another."""

    def __init__(self, line: Line, connect: Callable[[Callable[[], None]], Any]) -> None:
        """`connect` returns what the functions are passed; it calls back at each statement."""
        self.answers = 0
        self._line = line
        self._connect = connect
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Any], T]) -> T:
        async with self._turn:
            self._line.log(_name(work))
            first_s = self._line.trip()
            out_s = first_s * self._line.random.random()
            await asyncio.sleep(out_s)
            self._line.require()
            spent_s, is_begun = 0.0, False
            with self._line.clock.blocking(-out_s) as pass_time:

                def count() -> None:
                    nonlocal spent_s, is_begun
                    trip_s = self._line.trip() if is_begun else first_s
                    is_begun = True
                    spent_s += trip_s
                    self.answers += 1
                    pass_time(trip_s)

                result = work(self._connect(count))
            await asyncio.sleep(max(0.0, spent_s - out_s))
            self._line.require()
            return result

    async def read(self, query: Callable[[Any], T]) -> T:
        return await read_again(lambda: self.run(query))

    def hang_up(self) -> None:
        """Nothing hangs here."""

    async def close(self) -> None:
        """Nothing is open."""


class StepConnection:
    """Stands for a `LoopConnection`: statements, one after another."""

    def __init__(self, line: Line, execute: Callable[[Query], list[Any]]) -> None:
        self.answers = 0
        self._line = line
        self._execute = execute
        self._turn = asyncio.Lock()

    async def write(self, write: Callable[[], Steps[T]]) -> T:
        async with self._turn:
            self._line.log(_name(write))
            steps = write()
            try:
                query = next(steps)
                while True:
                    query = steps.send(await self._send(query))
            except StopIteration as end:
                result: T = end.value
                return result

    async def _send(self, query: Query) -> list[Any]:
        trip_s = self._line.trip()
        await asyncio.sleep(trip_s / 2)
        self._line.require()
        rows = self._execute(query)
        await asyncio.sleep(trip_s / 2)
        # The statement has had its effect, which the relay does not learn.
        self._line.require()
        self.answers += 1
        return rows

    def hang_up(self) -> None:
        """Nothing hangs here."""

    async def close(self) -> None:
        """Nothing is open."""


def _name(work: Any) -> str:
    """Name the store's function that runs."""
    while hasattr(work, "func"):
        work = work.func
    return getattr(work, "__qualname__", type(work).__name__).replace(".<locals>", "")
