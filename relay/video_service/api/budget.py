"""Budget of the requests to the API, shared by all who use one key.

It is shared out between the relays of one store in blocks, and here one by one.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakKeyDictionary, WeakValueDictionary

from relay.core.config_values import Secret
from relay.core.errors import StoreError
from relay.core.request_budget import GRANT_LIFE_S, ProcessBudgets, RequestBudgets

BLOCK_MAX = 8
"""Requests taken at once while the last ones were used up in time; unused ones are lost."""

STORE_RETRY_S = 1.0


class Budget:
    """Grants requests one by one, in turns between the users that wait."""

    def __init__(
        self,
        key: Secret,
        budgets: RequestBudgets,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._key = key
        self._budgets = budgets
        self._monotonic = monotonic
        self._sleep = sleep
        self._waiting = OrderedDict[int, deque[asyncio.Future[None]]]()
        self._granting: asyncio.Task[None] | None = None
        self._block = 1
        """Requests to take at once the next time."""
        self._left = 0
        self._left_until_s = 0.0
        self._paused_until_s = 0.0

    async def grant(self, user: object) -> None:
        """Wait until the user may send one request."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id(user), deque()).append(granted)
        if self._granting is None or self._granting.done():
            self._granting = asyncio.create_task(self._grant_in_turns())
        await granted

    async def pause(self, seconds: float) -> None:
        """Grant nothing for a while, because the service asked for it."""
        self._paused_until_s = max(self._paused_until_s, self._monotonic() + seconds)
        # Without the store, the service tells the other relays as well.
        with suppress(StoreError):
            await self._budgets.pause(self._key.reveal(), seconds)

    def paused_s(self) -> float:
        """Return for how long nothing is granted, because the service asked for it."""
        return max(self._paused_until_s - self._monotonic(), 0.0)

    async def _grant_in_turns(self) -> None:
        while self._waiting:
            if (paused_s := self.paused_s()) > 0:
                await self._sleep(paused_s)
            elif self._left and self._monotonic() < self._left_until_s:
                self._grant_next()
            else:
                await self._take()

    def _grant_next(self) -> None:
        user, queue = self._waiting.popitem(last=False)
        granted = queue.popleft()
        if queue:
            self._waiting[user] = queue
        if not granted.done():  # else its task was cancelled
            self._left -= 1
            granted.set_result(None)

    async def _take(self) -> None:
        """Take the next block, or wait for it."""
        taken_s = self._monotonic()
        is_used_up = not self._left and taken_s < self._left_until_s
        self._block = min(2 * self._block, BLOCK_MAX) if is_used_up else 1
        try:
            grant = await self._budgets.take(self._key.reveal(), most=self._block)
        except StoreError:
            await self._sleep(STORE_RETRY_S)
            return
        self._left, self._left_until_s = grant.requests, taken_s + GRANT_LIFE_S
        self._paused_until_s = max(self._paused_until_s, self._monotonic() + grant.paused_s)
        if not grant.requests:
            await self._sleep(max(grant.wait_s, grant.paused_s))


PROCESS = ProcessBudgets()
"""For users without a store."""

_BUDGETS = WeakKeyDictionary[RequestBudgets, WeakValueDictionary[Secret, Budget]]()
"""By key, for as long as it has users."""


def shared(key: Secret, budgets: RequestBudgets = PROCESS) -> Budget:
    """Return the budget of a key, which the service counts by."""
    by_key = _BUDGETS.setdefault(budgets, WeakValueDictionary())
    return by_key.setdefault(key, Budget(key, budgets))
