"""The tiers of pending deliveries, each with an index of its own on either engine."""

from typing import NamedTuple, Self

from relay.store import Tier
from relay.store.ordering import HELD_MS

OF_TIER: dict[Tier, str] = {
    "live": "replay IS NULL AND tries = 0",
    "replay": "replay IS NOT NULL AND tries = 0",
    "tried": "tries > 0",
}


class Position(NamedTuple):
    """Place of a delivery among those of its tier and sink."""

    due_ms: int
    event: int


class DueSpan(NamedTuple):
    """Deliveries of a tier that are due between two times, with their new due time."""

    tier: Tier
    after: int
    before: int
    due: int

    @property
    def end(self) -> Position:
        """The position behind all of them."""
        return Position(self.before, 0)

    @property
    def held(self) -> Self:
        """The same among the deliveries that wait for their turn."""
        after, before, due = (each + HELD_MS for each in self[1:])
        return self._replace(after=after, before=before, due=due)


def spans(*, beyond_ms: int, to_ms: int, now_ms: int) -> tuple[DueSpan, ...]:
    """Return the spans of late deliveries: tried ones after `beyond_ms`, others after now.

    Each is walked over once, from its end downwards, and only over events that were there when the
    walk began. Whatever becomes due later meanwhile is soon behind the walk, so that it ends
    however fast events arrive.
    """
    return (
        DueSpan("tried", beyond_ms, HELD_MS, to_ms),
        DueSpan("live", now_ms, HELD_MS, now_ms),
        DueSpan("replay", now_ms, HELD_MS, now_ms),
    )
