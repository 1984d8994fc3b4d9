"""Numbers of accepted events by kind, stored with each event and never removed."""

from collections.abc import Iterable, Iterator
from typing import Self

from relay.core.event import Event
from relay.core.totals import Total
from relay.store.sqlite.driver import sqlite3

TRIGGERED = """
    INSERT INTO totals
    SELECT NEW.source, NEW.known_kind, NEW.milestone, 1, NEW.received_at WHERE changes() > 0
    ON CONFLICT DO UPDATE SET
        events = events + 1, last_at = max(last_at, excluded.last_at);
"""
"""Part of a trigger after the insertion of an event; changes a row only if that did."""

_ALL = "SELECT source, kind, milestone, events, last_at FROM totals"


class Totals:
    """Holds all totals of a store."""

    def __init__(self, known: Iterable[Total] = ()) -> None:
        self._known = {(each.source, each.kind, each.milestone): each for each in known}

    @classmethod
    def of_store(cls, db: sqlite3.Connection) -> Self:
        return cls(Total(*row) for row in db.execute(_ALL))

    def of(self, event: Event) -> Total:
        """Return the total that the event adds to."""
        key = event.source, event.known_kind, event.milestone() or ""
        return self._known.get(key) or self._known.setdefault(key, Total(*key))

    def of_source(self, source: str) -> Iterator[Total]:
        """Return the totals of one source that are not 0."""
        return (each for each in self._known.values() if each.source == source and each.events)
