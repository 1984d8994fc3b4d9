"""Leased deliveries that have not begun: live before replayed, never tried before tried (pure)."""

import math
from collections import deque
from collections.abc import Iterable

from relay.core.delivery import Delivery
from relay.delivery.circuit_breaker import Room
from relay.store import Tier

HANDFUL = 32
"""So many of a tier are leased at once, or more where none is left."""

QUIET_S = 2.0
"""So long after the last live delivery a replay has its sink for itself."""

APART_S = 0.005
"""Between two replayed deliveries until then, so that live ones find the relay at leisure."""

SLOTS_MAX = 64
"""For so many slots at most the next deliveries are kept at hand, twice, while a look is under way.

One look takes as long as a batch or two are on their way.
"""

BYTES_MAX = 8 << 20
"""No more is looked for while there is so much of bodies at hand."""

SHARE = 4
"""One send in this many is a retry, also while deliveries that were never tried wait."""


class PrefetchBuffer:
    """A few deliveries of each tier; one with fewer than there are slots asks for more."""

    def __init__(self, slots: int) -> None:
        self._low = 2 * min(slots, SLOTS_MAX)
        self._most = self._low + max(self._low, HANDFUL)
        self._tiers: dict[Tier, deque[Delivery]] = {
            "live": deque(),
            "replay": deque(),
            "tried": deque(),
        }
        self._bytes = 0
        self._passed_over: set[Tier] = set()
        self._popped_s: dict[Tier, float] = dict.fromkeys(self._tiers, -math.inf)
        self._since_retry = 0

    def __bool__(self) -> bool:
        return any(self._tiers.values())

    @property
    def has_untried(self) -> bool:
        return bool(self._tiers["live"] or self._tiers["replay"])

    @property
    def has_tried(self) -> bool:
        return bool(self._tiers["tried"])

    def wants(self) -> dict[Tier, int]:
        """How many more of each tier that runs low; of others only where live ones do as well."""
        if len(self._tiers["live"]) >= self._low or self._bytes >= BYTES_MAX:
            return {}
        return {
            tier: self._most - len(held)
            for tier, held in self._tiers.items()
            if len(held) < self._low
        }

    def looked(self, limits: Iterable[Tier]) -> None:
        """Take note of which tiers the last look asked for."""
        self._passed_over = set(self._tiers) - set(limits)

    def is_short(self) -> bool:
        """Whether a tier runs low that the last look passed over, so that none knows its next."""
        return any(len(self._tiers[tier]) < self._low for tier in self._passed_over)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._bytes += len(delivery.event.body)
            self._tiers[_tier(delivery)].append(delivery)

    def wait_s(self, now_s: float) -> float:
        """How long the next that was never tried waits for the others' sake, in seconds.

        A live one never does.
        """
        if self._tiers["live"] or now_s - self._popped_s["live"] >= QUIET_S:
            return 0.0
        return max(0.0, self._popped_s["replay"] + APART_S - now_s)

    def pop(self, room: Room, now_s: float) -> list[Delivery]:
        """The next to send; a retry goes alone, because it may spoil what it goes out with."""
        if self._since_retry + 1 >= SHARE and room.tried and self.has_tried:
            return self._retry(now_s)
        return self.probe(room, now_s)

    def probe(self, room: Room, now_s: float) -> list[Delivery]:
        """The next to send, a retry only where nothing else may go."""
        popped = self._untried(room.untried, now_s)
        if popped or not room.tried:
            self._since_retry += bool(popped)
            return popped
        return self._retry(now_s)

    def _retry(self, now_s: float) -> list[Delivery]:
        self._since_retry = 0
        return self._pop("tried", 1, now_s)

    def _untried(self, count: int, now_s: float) -> list[Delivery]:
        popped = self._pop("live", count, now_s)
        if len(popped) < count and self.wait_s(now_s) <= 0:
            quiet = now_s - self._popped_s["live"] >= QUIET_S
            popped += self._pop("replay", count - len(popped) if quiet else 1, now_s)
        return popped

    def _pop(self, tier: Tier, count: int, now_s: float) -> list[Delivery]:
        held = self._tiers[tier]
        popped = [held.popleft() for _ in range(min(count, len(held)))]
        if popped:
            self._popped_s[tier] = now_s
            self._bytes -= sum(len(delivery.event.body) for delivery in popped)
        return popped

    def clear(self) -> tuple[Delivery, ...]:
        """Give up all of them, to be released."""
        held = tuple(delivery for tier in self._tiers.values() for delivery in tier)
        for tier in self._tiers.values():
            tier.clear()
        self._bytes = 0
        return held


def _tier(delivery: Delivery) -> Tier:
    if delivery.tries:
        return "tried"
    return "live" if delivery.replay is None else "replay"
