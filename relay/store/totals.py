"""How many events of each kind were accepted: written with them, and never forgotten."""

from collections.abc import Iterator
from typing import NamedTuple, Self

from relay.event import Event
from relay.store.driver import sqlite3

TRIGGERED = """
    INSERT INTO totals
    SELECT NEW.source, NEW.known_kind, NEW.milestone, 1, NEW.received_at WHERE changes() > 0
    ON CONFLICT DO UPDATE SET
        events = events + 1, last_at = max(last_at, excluded.last_at);
"""
"""What a trigger does right after the insertion of an event; changes a row if that did."""

_ALL = "SELECT source, kind, milestone, events, last_at FROM totals"


class Label(NamedTuple):
    """What an event is counted under."""

    source: str
    kind: str
    """A known one, or `other`."""
    milestone: str
    """Empty where there is none."""

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(event.source, event.known_kind, event.milestone() or "")


class Total(NamedTuple):
    """How many there were, and when the newest of them was received."""

    label: Label
    events: int
    last_ms: int


class Totals:
    """All totals as they are on disk; whoever writes an event says so once it is durable."""

    def __init__(self, known: dict[Label, Total]) -> None:
        self._known = known

    @classmethod
    def of_store(cls, db: sqlite3.Connection) -> Self:
        rows = db.execute(_ALL)
        return cls({Label(*row[:3]): Total(Label(*row[:3]), *row[3:]) for row in rows})

    def add(self, label: Label, received_ms: int) -> Total:
        """Count one more; return the total with it."""
        before = self._known.get(label, Total(label, 0, 0))
        total = Total(label, before.events + 1, max(before.last_ms, received_ms))
        self._known[label] = total
        return total

    def of(self, source: str) -> Iterator[Total]:
        """Those of one source."""
        return (total for label, total in self._known.items() if label.source == source)
