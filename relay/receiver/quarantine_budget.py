"""How much is kept for a source while its secret is rotated (pure)."""

from dataclasses import dataclass

COUNT_MAX = 50_000
"""A quarter of an hour of ten events a second, each tried five times in that time."""

BYTES_MAX = 64 << 20
"""As many of the usual size; a quarter of the room that `min_free` keeps by default."""

RATE_MAX = 200
"""A second, and as many at once: a good share of what the disk takes stays free for the rest."""


@dataclass(slots=True)
class QuarantineBudget:
    """What is known in memory of a rotation, so that refusing needs no look into the store."""

    until_ms: int
    expires_ms: int
    count: int
    bytes: int
    allowance: float = RATE_MAX
    at_s: float = 0.0
    dropped: int = 0
    under_way: int = 0
    """Writes that the store's own figures may not know yet."""
    begun: int = 0
    """Writes ever."""

    def excess(self, size: int, now_s: float) -> str | None:
        """The limit that another request would exceed; else it is counted."""
        self.allowance = min(RATE_MAX, self.allowance + (now_s - self.at_s) * RATE_MAX)
        self.at_s = now_s
        if self.count >= COUNT_MAX:
            return "count"
        if self.bytes + size > BYTES_MAX:
            return "bytes"
        if self.allowance < 1:
            return "rate"
        self.allowance -= 1
        self.count += 1
        self.bytes += size
        self.begun += 1
        return None
