"""Counts of accepted events by source, kind and milestone: what store and metrics exchange."""

import msgspec


class Total(msgspec.Struct):
    """The stored count of new events of one source, kind and milestone."""

    source: str
    kind: str
    """A documented kind, or `other`."""
    milestone: str
    """Empty for kinds without milestones."""
    events: int = 0
    last_ms: int = 0
    """Receipt of the newest of them, in milliseconds since the epoch."""

    def add(self, received_ms: int) -> None:
        """Count one more event, once it is durable."""
        self.events += 1
        if received_ms > self.last_ms:  # noqa: PLR1730  a call costs more
            self.last_ms = received_ms
