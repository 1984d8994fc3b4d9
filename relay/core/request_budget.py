"""Budget of the requests that are made with one key, in one process or in several."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

PER_MINUTE = 540
"""Requests in any minute; the service allows 600 (video-service.md, section 8).

The rest is left to other programs with the same key.
"""

BURST = 60
"""Requests that may be sent at once after a pause; they are part of `PER_MINUTE`."""

GRANT_LIFE_S = 2.0
"""Time in which what several processes share out has to be used: later, a minute had too many."""

INTERVAL_S = 60 / (PER_MINUTE - BURST)
SHARED_INTERVAL_S = (60 + GRANT_LIFE_S) / (PER_MINUTE - BURST)
"""Time for which one request counts, where it is sent at once, and up to `GRANT_LIFE_S` later."""


class Grant(NamedTuple):
    """Some requests, or none and the wait for the next one."""

    requests: int
    wait_s: float = 0.0
    paused_s: float = 0.0
    """For how long nothing is granted, because the service asked for it."""


class RequestBudgets(Protocol):
    """Shares out requests by key, between all who use the store; methods may raise StoreError."""

    async def take(self, key: str, *, most: int) -> Grant:
        """Take up to `most` requests, to be sent within `GRANT_LIFE_S`."""
        ...

    async def pause(self, key: str, seconds: float) -> None:
        """Grant nothing for a while."""
        ...


class ProcessBudgets:
    """Fulfils `RequestBudgets` for one process; requests are granted one by one."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._full_at_s: dict[str, float] = {}
        """When the burst is available whole; each request moves it."""

    async def take(self, key: str, *, most: int) -> Grant:  # noqa: ARG002  one is enough
        now_s = self._monotonic()
        full_at_s = max(self._full_at_s.get(key, -math.inf), now_s)
        wait_s = full_at_s - (BURST - 1) * INTERVAL_S - now_s
        if wait_s > 0:
            return Grant(0, wait_s)
        self._full_at_s[key] = full_at_s + INTERVAL_S
        return Grant(1)

    async def pause(self, key: str, seconds: float) -> None:
        """Do nothing: the caller is the only user of the key."""
