"""What a dispatcher has leased and not yet begun: live deliveries before replayed ones (pure)."""

import math
from collections import deque
from collections.abc import Iterable

from relay.delivery import Delivery
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


class Hand:
    """A few deliveries of each tier; one with fewer than there are slots asks for more."""

    def __init__(self, slots: int) -> None:
        self._low = 2 * min(slots, SLOTS_MAX)
        self._most = self._low + max(self._low, HANDFUL)
        self._tiers: dict[Tier, deque[Delivery]] = {"live": deque(), "replay": deque()}
        self._bytes = 0
        self._passed_over: set[Tier] = set()
        self._popped_s: dict[Tier, float] = {"live": -math.inf, "replay": -math.inf}

    def __bool__(self) -> bool:
        return bool(self._tiers["live"] or self._tiers["replay"])

    def wants(self) -> dict[Tier, int]:
        """How many more of each tier that runs low; of replays only where live ones do as well."""
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
            self._tiers["live" if delivery.replay is None else "replay"].append(delivery)

    def wait_s(self, now_s: float) -> float:
        """How long the next has to wait for the others' sake, in seconds; a live one never does."""
        if self._tiers["live"] or now_s - self._popped_s["live"] >= QUIET_S:
            return 0.0
        return max(0.0, self._popped_s["replay"] + APART_S - now_s)

    def pop(self, count: int, now_s: float) -> list[Delivery]:
        """The next to send, so many at most; none that has to wait."""
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
