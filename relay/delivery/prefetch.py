"""Prefetch buffer of leased deliveries that have not started.

Live ones go before replayed ones, and deliveries never tried before retries.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import get_args

from relay.core.delivery import Delivery
from relay.delivery.circuit_breaker import SendCapacity
from relay.store import Tier

FETCH_MIN = 32
"""Deliveries of a tier leased at once, unless twice the slots are more."""

QUIET_S = 2.0
"""Time after the last live delivery from which replays may use the whole sink."""

REPLAY_GAP_S = 0.005
"""Minimum gap between replayed deliveries while live traffic flows, so that it is not delayed."""

BUFFERED_SLOTS_MAX = 64
"""Slots for which the next deliveries are buffered, twice.

A fetch takes as long as one or two batches are in flight.
"""

BUFFERED_BYTES_MAX = 8 << 20
"""Total size of buffered bodies, in bytes, from which nothing more is fetched."""

RETRY_SHARE = 4
"""One send in this many is a retry, even while deliveries never tried wait."""


class PrefetchBuffer:
    """Holds a few deliveries of each tier, and asks for more below two for each slot."""

    def __init__(self, slots: int) -> None:
        self._low = 2 * min(slots, BUFFERED_SLOTS_MAX)
        self._capacity = self._low + max(self._low, FETCH_MIN)
        self._tiers: dict[Tier, deque[Delivery]] = {tier: deque() for tier in get_args(Tier)}
        self._bytes = 0
        self._skipped: set[Tier] = set()
        self._last_pop_s: dict[Tier, float] = dict.fromkeys(self._tiers, -math.inf)
        self._pops_since_retry = 0

    def __bool__(self) -> bool:
        return any(self._tiers.values())

    @property
    def has_untried(self) -> bool:
        return bool(self._tiers["live"] or self._tiers["replay"])

    @property
    def has_tried(self) -> bool:
        return bool(self._tiers["tried"])

    def has_room(self, count: int) -> bool:
        """Whether this many live deliveries may be added that were not fetched."""
        is_free = len(self._tiers["live"]) + count <= self._capacity
        return is_free and self._bytes < BUFFERED_BYTES_MAX

    def demand(self) -> dict[Tier, int]:
        """Return how many more to fetch of each tier that runs low, once the live one does."""
        if len(self._tiers["live"]) >= self._low or self._bytes >= BUFFERED_BYTES_MAX:
            return {}
        return {
            tier: self._capacity - len(buffered)
            for tier, buffered in self._tiers.items()
            if len(buffered) < self._low
        }

    def fetched(self, limits: Iterable[Tier]) -> None:
        """Record which tiers the last fetch covered."""
        self._skipped = set(self._tiers) - set(limits)

    def is_short(self) -> bool:
        """Whether a tier runs low that the last fetch skipped: its next due time is unknown."""
        return any(len(self._tiers[tier]) < self._low for tier in self._skipped)

    def add(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._bytes += len(delivery.event.body)
            self._tiers[_tier(delivery)].append(delivery)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next delivery never tried may go; 0 for a live one."""
        if self._tiers["live"] or self._is_quiet(now_s):
            return 0.0
        return max(0.0, self._last_pop_s["replay"] + REPLAY_GAP_S - now_s)

    def pop(self, room: SendCapacity, now_s: float) -> list[Delivery]:
        """Take the next to send; a retry goes alone, because it could fail its whole batch."""
        if self._pops_since_retry + 1 >= RETRY_SHARE and room.tried and self.has_tried:
            return self._pop_retry(now_s)
        return self.pop_probe(room, now_s)

    def pop_probe(self, room: SendCapacity, now_s: float) -> list[Delivery]:
        """Take the next to send; a retry only where nothing else may go."""
        popped = self._pop_untried(room.untried, now_s)
        if popped or not room.tried:
            self._pops_since_retry += bool(popped)
            return popped
        return self._pop_retry(now_s)

    def clear(self) -> tuple[Delivery, ...]:
        """Empty the buffer and return its content, to be released."""
        buffered = tuple(delivery for tier in self._tiers.values() for delivery in tier)
        for tier in self._tiers.values():
            tier.clear()
        self._bytes = 0
        return buffered

    def _is_quiet(self, now_s: float) -> bool:
        return now_s - self._last_pop_s["live"] >= QUIET_S

    def _pop_retry(self, now_s: float) -> list[Delivery]:
        self._pops_since_retry = 0
        return self._pop_tier("tried", 1, now_s)

    def _pop_untried(self, count: int, now_s: float) -> list[Delivery]:
        popped = self._pop_tier("live", count, now_s)
        if len(popped) < count and self.wait_s(now_s) <= 0:
            replays = count - len(popped) if self._is_quiet(now_s) else 1
            popped += self._pop_tier("replay", replays, now_s)
        return popped

    def _pop_tier(self, tier: Tier, count: int, now_s: float) -> list[Delivery]:
        buffered = self._tiers[tier]
        popped = [buffered.popleft() for _ in range(min(count, len(buffered)))]
        if popped:
            self._last_pop_s[tier] = now_s
            self._bytes -= sum(len(delivery.event.body) for delivery in popped)
        return popped


def _tier(delivery: Delivery) -> Tier:
    if delivery.tries:
        return "tried"
    return "live" if delivery.replay is None else "replay"
