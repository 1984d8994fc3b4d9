"""Limits of wrong tokens, in the memory of the only process that has the store."""

import math
from collections import OrderedDict

from relay.core.clock import Clock
from relay.store.login_limits import (
    ADDRESSES_MAX,
    TOTAL_BURST,
    TOTAL_INTERVAL_S,
    TOTAL_WAIT_S,
    TRIES,
    TRY_AGAIN_S,
    site,
)


class SqliteLoginLimits:
    """Fulfils `relay.store.login_limits.LoginLimits`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = OrderedDict[str, float]()
        self._total_free_at = 0.0

    async def take(self, address: str | None) -> int:
        now_s, place = self._clock.monotonic(), site(address)
        free_at = max(now_s, self._free_at.get(place, 0.0))
        wait_s = math.ceil(free_at - now_s - (TRIES - 1) * TRY_AGAIN_S)
        if wait_s > 0:
            return wait_s
        self._free_at[place] = free_at + TRY_AGAIN_S
        self._free_at.move_to_end(place)
        while len(self._free_at) > ADDRESSES_MAX:
            self._free_at.popitem(last=False)
        return 0

    async def put_back(self, address: str | None) -> None:
        place = site(address)
        if place in self._free_at:
            self._free_at[place] -= TRY_AGAIN_S

    async def failed(self) -> int:
        now_s = self._clock.monotonic()
        if self._total_free_at - now_s > (TOTAL_BURST - 1) * TOTAL_INTERVAL_S:
            return TOTAL_WAIT_S
        self._total_free_at = max(now_s, self._total_free_at) + TOTAL_INTERVAL_S
        return 0
