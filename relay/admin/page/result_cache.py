"""Results of slow reads, shown again for a while: an open page may ask four times a second."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from relay.core.clock import Clock

T = TypeVar("T")

QUICK_S = 0.02
"""Time below which a read is repeated whenever it is asked for."""

REST = 20
"""How often its own time a slow result is shown again: reading takes 5 % of a processor at most."""

KEPT_MAX = 50

RUNNING_MAX = 16
"""Reads at once with keys of one type: a visitor who leaves and asks for something else must not
pile them up, nor keep others from reads of another kind."""


class _CachedResult(msgspec.Struct, frozen=True):
    begun_s: float
    until_s: float
    result: Any


class ResultCache:
    """Keeps the latest slow results in memory; visitors who ask at once share one read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, _CachedResult] = OrderedDict()
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return a result that is fresh enough, else read it; raises as `read` does.

        A read goes on if its visitor leaves or waits no longer, and is there for the next one.
        """
        kept = self._kept.get(key)
        if kept is not None and self._clock.monotonic() < kept.until_s:
            result: T = kept.result
            return result
        task = self._running.get(key)
        if task is None:
            if sum(type(each) is type(key) for each in self._running) >= RUNNING_MAX:
                raise HTTPException(429, "Too many slow reads run at once. Try again in a moment.")
            task = self._running[key] = asyncio.create_task(self._read(key, read, self._running))
            # Marks the error as seen, also if every visitor has left; the next one reads again.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        read_now: T = await asyncio.shield(task)
        return read_now

    def forget(self) -> None:
        """Read everything anew after a change."""
        self._kept.clear()
        self._running = {}

    def is_under_way(self, key: Hashable) -> bool:
        """Whether `get` would return a result whose read has begun before."""
        return key in self._running or self.kept_until_s(key) > self._clock.monotonic()

    def kept_until_s(self, key: Hashable) -> float:
        """Return when a result is read anew; in the past if none is kept."""
        return self._kept[key].until_s if key in self._kept else 0.0

    def begun_s(self, key: Hashable) -> float:
        """Return when the read of a kept result began; now if none is kept."""
        return self._kept[key].begun_s if key in self._kept else self._clock.monotonic()

    async def _read(
        self,
        key: Hashable,
        read: Callable[[], Awaitable[T]],
        running: dict[Hashable, asyncio.Task[Any]],
    ) -> T:
        started_s = self._clock.monotonic()
        try:
            result = await read()
        finally:
            del running[key]
        ended_s = self._clock.monotonic()
        if running is not self._running:  # It was begun before a change.
            return result
        self._kept.pop(key, None)
        if ended_s - started_s > QUICK_S:
            until_s = ended_s + REST * (ended_s - started_s)
            self._kept[key] = _CachedResult(started_s, until_s, result)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return result


class CachedReads:
    """Those of one visit, which remember whether something may have changed since."""

    def __init__(self, results: ResultCache, clock: Clock) -> None:
        self._results = results
        self._clock = clock
        self._until_s: float | None = None
        self._begun_s: float | None = None

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result as `ResultCache.get` does."""
        is_older = self._results.is_under_way(key)
        result = await self._results.get(key, read)
        if is_older:
            self._until_s = max(self._until_s or 0.0, self._results.kept_until_s(key))
            begun_s = self._results.begun_s(key)
            self._begun_s = begun_s if self._begun_s is None else min(self._begun_s, begun_s)
        return result

    @property
    def age_ms(self) -> int:
        """Milliseconds since the oldest of the results was read; 0 if all were for this visit."""
        if self._begun_s is None:
            return 0
        return math.ceil((self._clock.monotonic() - self._begun_s) * 1000)

    @property
    def again_ms(self) -> int | None:
        """Milliseconds until all is read anew; None if it was read for this visit."""
        if self._until_s is None:
            return None
        return max(0, math.ceil((self._until_s - self._clock.monotonic()) * 1000)) + 1
