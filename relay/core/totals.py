"""Counts of accepted events by source, kind and milestone."""

from dataclasses import dataclass


@dataclass(slots=True)
class Total:
    """How many new events of a source, kind and milestone there were, as it is on disk."""

    source: str
    kind: str
    """A known one, or `other`."""
    milestone: str
    """Empty where there is none."""
    events: int = 0
    last_ms: int = 0
    """When the newest of them was received."""

    def add(self, received_ms: int) -> None:
        """Count one more event, once it is durable."""
        self.events += 1
        if received_ms > self.last_ms:  # noqa: PLR1730  a call costs more
            self.last_ms = received_ms
