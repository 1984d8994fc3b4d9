"""How long nobody was there to answer, and whether the sender may have given up meanwhile (pure).

delivery.md, section 1: an event is lost only if all of its six tries meet nobody.
"""

from dataclasses import dataclass

WINDOW_MS = 620_000
"""From an event's first try to its last (video-service.md, section 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Milliseconds since the epoch."""

    from_ms: int
    to_ms: int

    @property
    def seconds(self) -> float:
        return (self.to_ms - self.from_ms) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """From the last sign of life to the start after it."""

    from_ms: int
    to_ms: int
    lacks: Interval | None
    """Events whose first try fell into it are gone for good; None where all came again."""

    @property
    def seconds(self) -> float:
        return (self.to_ms - self.from_ms) / 1000

    @property
    def lost_s(self) -> float:
        """How much of it the sender did not bridge."""
        return 0.0 if self.lacks is None else self.lacks.seconds


def between(alive_ms: int | None, now_ms: int) -> Downtime | None:
    """What lies between the last sign of life and now; None where there was none, or no time."""
    if alive_ms is None or now_ms <= alive_ms:
        return None
    given_up_ms = now_ms - WINDOW_MS
    lacks = Interval(from_ms=alive_ms, to_ms=given_up_ms) if given_up_ms > alive_ms else None
    return Downtime(from_ms=alive_ms, to_ms=now_ms, lacks=lacks)
