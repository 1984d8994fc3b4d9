"""An event loop whose time is handed out, not waited for: hours pass while nothing is to be done.

Time stands still while SQLite's threads work, so what a test sees does not depend on the machine.
"""

import asyncio
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from relay.store.sqlite import driver
from tests import loop_watch
from tests.conftest import NOW_MS

STUCK_S = 20.0
"""Real seconds without anything to wait for: the test would hang for ever."""

SPINS_MAX = 20_000
"""Turns of the loop without a moment of time between them: a task waits by asking again."""


class VirtualTime(asyncio.SelectorEventLoop):
    """Jumps to the next timer as soon as nobody is at work."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.at_work = 0
        self.spins = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now_s

    async def shutdown_default_executor(self, *_: object) -> None:
        # Python 3.12 and newer give the executor 300 s, which pass here at once.
        await super().shutdown_default_executor()


class VirtualLoop(VirtualTime, loop_watch.PlainLoop):
    """The same, watched."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            self._loop.spins += 1
            if self._loop.spins > SPINS_MAX and not self._loop.at_work:
                raise RuntimeError(f"a task does not wait for the time after {self._loop.now_s} s")
            return super().select(0)
        self._loop.spins = 0
        if timeout is not None and not self._loop.at_work:
            found = super().select(0)
            if not found:
                self._loop.now_s += timeout
            return found
        found = super().select(STUCK_S)
        if not found:
            raise RuntimeError("nothing will ever happen any more")
        return found


class LoopClock:
    """The loop's time as a `relay.core.clock.Clock`; its wall clock can be set."""

    def __init__(self) -> None:
        self.set_by_ms = 0
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return NOW_MS + round(self.monotonic() * 1000) + self.set_by_ms

    def monotonic(self) -> float:
        return self._loop.time()


@contextmanager
def still_while_the_store_works() -> Iterator[None]:
    """Let no time pass between a call to SQLite's thread and its answer."""
    execute: Callable[..., Any] = driver.Connection._execute

    async def counted(self: driver.Connection, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return await execute(self, *args, **kwargs)
        loop.at_work += 1
        try:
            return await execute(self, *args, **kwargs)
        finally:
            loop.at_work -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.Connection, "_execute", counted)
        yield
