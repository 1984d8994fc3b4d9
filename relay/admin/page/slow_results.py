"""Results of slow reads, shown again for a while: an open page may ask four times a second."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from relay.core.clock import Clock

T = TypeVar("T")

QUICK_S = 0.02
"""Time below which a read is repeated whenever it is asked for."""

REST = 20
"""How often its own time a slow result is shown again: reading takes 5 % of a processor at most."""

KEPT_MAX = 50


class SlowResults:
    """Keeps the latest slow results in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return a result that is fresh enough, else read it; raises as `read` does."""
        started_s = self._clock.monotonic()
        until_s, result = self._kept.get(key, (0.0, None))
        if started_s < until_s:
            kept: T = result
            return kept
        read_now = await read()
        ended_s = self._clock.monotonic()
        self._kept.pop(key, None)
        if ended_s - started_s > QUICK_S:
            self._kept[key] = ended_s + REST * (ended_s - started_s), read_now
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return read_now
