"""Budget of the requests to the API, shared by all who use one key in this process.

The service allows 600 requests a minute and key (video-service.md, section 8).
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from relay.core.config_values import Secret

PER_MINUTE = 540
"""Requests in any minute; the rest is left to other programs with the same key."""

BURST = 60
"""Requests that may be sent at once after a pause; they are part of `PER_MINUTE`."""

_INTERVAL_S = 60 / (PER_MINUTE - BURST)


class Budget:
    """Grants requests one by one, in turns between the users that wait."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._waiting = OrderedDict[int, deque[asyncio.Future[None]]]()
        self._granting: asyncio.Task[None] | None = None
        self._full_at_s = 0.0
        """When the burst is available whole; each request moves it."""
        self._paused_until_s = 0.0

    async def grant(self, user: object) -> None:
        """Wait until the user may send one request."""
        if not self._waiting and self._wait_s() <= 0:
            self._spend()
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id(user), deque()).append(granted)
        if self._granting is None or self._granting.done():
            self._granting = asyncio.create_task(self._grant_in_turns())
        await granted

    def pause(self, seconds: float) -> None:
        """Grant nothing for a while, because the service asked for it."""
        self._paused_until_s = max(self._paused_until_s, self._monotonic() + seconds)

    def paused_s(self) -> float:
        """Return for how long nothing is granted, because the service asked for it."""
        return max(self._paused_until_s - self._monotonic(), 0.0)

    async def _grant_in_turns(self) -> None:
        while self._waiting:
            wait_s = self._wait_s()
            if wait_s > 0:
                await self._sleep(wait_s)
                continue
            user, queue = self._waiting.popitem(last=False)
            granted = queue.popleft()
            if queue:
                self._waiting[user] = queue
            if not granted.done():  # else its task was cancelled
                self._spend()
                granted.set_result(None)

    def _spend(self) -> None:
        self._full_at_s = max(self._full_at_s, self._monotonic()) + _INTERVAL_S

    def _wait_s(self) -> float:
        now_s = self._monotonic()
        within_burst_at_s = self._full_at_s - (BURST - 1) * _INTERVAL_S
        return max(within_burst_at_s, self._paused_until_s) - now_s


_BUDGETS = WeakValueDictionary[Secret, Budget]()
"""By key, for as long as it has users: the service counts by key, in the whole process."""


def shared(key: Secret) -> Budget:
    """Return the budget of a key."""
    return _BUDGETS.setdefault(key, Budget())
