"""Limits on the requests quarantined for a source while its secret is rotated."""

import msgspec

COUNT_MAX = 50_000
"""Fifteen minutes of ten events a second, each tried five times in that time."""

BYTES_MAX = 64 << 20
"""This many of the usual size; a quarter of the room that `min_free` keeps by default."""

RATE_MAX = 200
"""Requests per second, and the largest burst; leaves most of the disk's rate to other work."""


class QuarantineBudget(msgspec.Struct):
    """A rotation's figures in memory, so that refusing a request needs no query."""

    until_ms: int = 0
    expires_ms: int = 0
    count: int = 0
    bytes: int = 0
    allowance: float = RATE_MAX
    at_s: float = 0.0
    dropped: int = 0
    under_way: int = 0
    """Writes that the store's own figures may not include yet."""

    def excess(self, size: int, now_s: float) -> str | None:
        """Count a request, or return the limit that it would exceed."""
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
        return None
