"""Numbers of accepted events by kind, stored with each event and never removed."""

from relay.core.totals import Total
from relay.store.sqlite.driver import sqlite3
from relay.store.totals import Totals

TRIGGERED = """
    INSERT INTO totals
    SELECT NEW.source, NEW.known_kind, NEW.milestone, 1, NEW.received_at WHERE changes() > 0
    ON CONFLICT DO UPDATE SET
        events = events + 1, last_at = max(last_at, excluded.last_at);
"""
"""Part of a trigger after the insertion of an event; changes a row only if that did."""

_ALL = "SELECT source, kind, milestone, events, last_at FROM totals"


def totals(db: sqlite3.Connection) -> Totals:
    """Read all totals of a store."""
    return Totals(Total(*row) for row in db.execute(_ALL))
