"""The tiers of pending deliveries, each with an index of its own on either engine."""

from typing import NamedTuple

from relay.store import Tier

OF_TIER: dict[Tier, str] = {
    "live": "replay IS NULL AND tries = 0",
    "replay": "replay IS NOT NULL AND tries = 0",
    "tried": "tries > 0",
}

HELD_MS = 1 << 60
"""Added to the due time of a delivery that waits for its turn: later than any time."""


class Span(NamedTuple):
    """Deliveries of a tier that are due between two times, with their new due time."""

    tier: Tier
    after: int
    before: int
    due: int


def spans(*, beyond_ms: int, to_ms: int, now_ms: int) -> tuple[Span, ...]:
    """Return the spans of late deliveries: tried ones after `beyond_ms`, others after now."""
    limits: dict[Tier, tuple[int, int]] = {
        "tried": (beyond_ms, to_ms),
        "live": (now_ms, now_ms),
        "replay": (now_ms, now_ms),
    }
    return tuple(
        Span(tier, held + after, held + HELD_MS, held + to)
        for tier, (after, to) in limits.items()
        for held in (0, HELD_MS)
    )
