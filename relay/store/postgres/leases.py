"""Leases of this relay's dispatchers, and how far each has walked over the due deliveries.

It is kept in memory, for one acquisition of a sink: it goes with the fence. After that, or a start,
a relay walks over all due deliveries once.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from relay.core.delivery import Delivery
from relay.store import Tier
from relay.store.postgres.fences import Fence
from relay.store.tiers import Position

LAG_MS = 2_000
"""A walk begins this long before the present: a transaction may commit later than another one."""

COST_FACTOR = 20
"""A walk from the very beginning waits for this many times its last duration.

It passes over all that was settled since the last vacuum, which one old transaction can hold up.
"""

PATIENCE_S = 5.0
"""A walk from the very beginning begins this late at most, however much there is; then doubled."""


START = Position(-(1 << 62), 0)
END = Position(1 << 62, 0)


class Walk(msgspec.Struct):
    """Walks over a tier of one sink's due deliveries, in their order, some at a time.

    Settled deliveries stay in the index until a vacuum, so most walks begin where the last one
    ended, less `LAG_MS`. A walk over the whole tier finds late commits, and deliveries that another
    relay has made due again. A walk ends at the latest where it has passed the time of its
    beginning, so that the next one begins however fast deliveries become due.
    """

    at: Position | None = None
    """The last delivery that was read; None between two walks."""
    beginning: Position = START
    included: Position = END
    """The first that was included since the last read began, which may have passed it."""
    is_whole: bool = False
    until_ms: int = 0
    """Time at which the walk began."""
    is_one_read: bool = True
    """Whether no commit can have come behind the walk since it began."""
    cost_s: float = 0.0
    """Duration of its reads so far."""
    whole_from_s: float = -math.inf
    """Time of the next walk over the whole tier."""
    restart_s: float = math.inf
    """Time at which a walk under way begins anew."""
    patience_s: float = PATIENCE_S

    def next(self, now_s: float, *, now_ms: int) -> Position:
        """Return the position to read behind."""
        self.included = END
        if self.at is not None and now_s < self.restart_s:
            self.is_one_read = False
            return self.at
        if self.at is not None:
            self.patience_s *= 2
        self.restart_s = now_s + self.patience_s
        self.until_ms = now_ms
        self.is_whole, self.is_one_read = now_s >= self.whole_from_s, True
        return START if self.is_whole else self.beginning

    def read(self, behind: Position, *, took_s: float, now_s: float) -> None:
        """Note how long the read took."""
        self.cost_s = took_s if behind == START else self.cost_s + took_s
        if self.is_whole:
            self.whole_from_s = now_s + COST_FACTOR * self.cost_s

    def has_passed(self, now_ms: int) -> bool:
        """Whether the last read may have passed a delivery that became due meanwhile."""
        return self.included.due_ms <= now_ms

    def stopped(self, at: Position, *, now_ms: int) -> None:
        """Note that there may be more behind a position."""
        if at.due_ms > self.until_ms:
            self.ended(at, now_ms=now_ms)
            self.beginning = min(self.beginning, self.included)
        else:
            self.at = min(at, self.included)

    def ended(self, last: Position, *, now_ms: int) -> float | None:
        """Note that all was read, up to a position.

        Returns the time at which to read again, unless the whole tier was read at once.
        """
        self.at, self.patience_s = None, PATIENCE_S
        self.beginning = max(self.beginning, min(last, Position(now_ms - LAG_MS, 0)))
        return None if self.is_whole and self.is_one_read else self.whole_from_s

    def include(self, position: Position) -> None:
        """Let the next read find a delivery that is due again."""
        before = Position(position.due_ms, position.event - 1)
        self.beginning = min(self.beginning, before)
        self.included = min(self.included, before)
        if self.at is not None:
            self.at = min(self.at, before)


class Held(NamedTuple):
    """A leased delivery."""

    tier: Tier
    position: Position
    turn: int | None


class SinkLeases(msgspec.Struct):
    """Leases of one sink."""

    fence: Fence | None
    held: dict[int, Held] = msgspec.field(default_factory=dict)
    """Deliveries that a dispatcher may be sending, by the numbers of their events."""
    walks: defaultdict[Tier, Walk] = msgspec.field(default_factory=lambda: defaultdict(Walk))
    ended_turns: set[int] = msgspec.field(default_factory=set)
    """Turns whose next delivery may lie before the walks."""

    def turns(self) -> list[int]:
        """Return the turns of which a delivery may be under way."""
        return [held.turn for held in self.held.values() if held.turn is not None]

    def release(self, seq: int) -> None:
        """Let a delivery be leased again."""
        held = self.held.pop(seq, None)
        if held is not None:
            self.walks[held.tier].include(held.position)

    def settled(self, delivery: Delivery, due_ms: int | None) -> None:
        """End a lease; the delivery is due again at `due_ms` if it is still pending."""
        self.held.pop(delivery.seq, None)
        if due_ms is not None:
            self.walks["tried"].include(Position(due_ms, delivery.seq))
        elif delivery.turn is not None:
            self.ended_turns.add(delivery.turn)

    def due_again(self, tier: Tier, due_ms: int) -> None:
        """Let the next read find deliveries whose due time is this one now."""
        self.walks[tier].include(Position(due_ms, 1))

    def walk_again(self) -> None:
        """Let the next read begin at the very beginning."""
        self.walks.clear()


class Leases:
    """Leases of all sinks."""

    def __init__(self) -> None:
        self._sinks: dict[str, SinkLeases] = {}

    def under(self, sink: str, fence: Fence | None) -> SinkLeases:
        """Return a sink's leases under a fence; those under another one are forgotten."""
        leases = self._sinks.get(sink)
        if leases is None or leases.fence != fence:
            leases = self._sinks[sink] = SinkLeases(fence)
        return leases

    def get(self, sink: str) -> SinkLeases | None:
        return self._sinks.get(sink)

    def is_held(self, sink: str, seq: int) -> bool:
        return sink in self._sinks and seq in self._sinks[sink].held

    def clear(self, sink: str) -> None:
        """Forget a sink whose dispatcher has ended."""
        self._sinks.pop(sink, None)

    def walk_again(self, sinks: Iterable[str] | None = None) -> None:
        """Let due times that were changed be found, of all sinks or some."""
        for sink in self._sinks if sinks is None else self._sinks.keys() & sinks:
            self._sinks[sink].walk_again()
