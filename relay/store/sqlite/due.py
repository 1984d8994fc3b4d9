"""Changes of due times.

A delivery that waits for another of its turn stays held, whatever its due time.
"""

import orjson

from relay.store.sqlite.driver import sqlite3
from relay.store.tiers import OF_TIER, DueSpan, Position

STEP_ROWS = 1000
"""Deliveries brought forward per transaction, so that others can run in between."""

# One row, because Python's lock changes hands at each row.
_LATER = {
    tier: f"""
SELECT min(due_at), json_group_array(event) FROM (
    SELECT due_at, event FROM deliveries
    WHERE sink = ? AND status = 'pending' AND {belongs}
        AND due_at > ? AND (due_at, event) < (?, ?) AND event <= ?
    ORDER BY due_at DESC, event DESC LIMIT {STEP_ROWS}
)
"""
    for tier, belongs in OF_TIER.items()
}
# A clock that was ahead has distorted these times too.
_BRING_FORWARD = """
UPDATE deliveries
SET due_at = ?, first_attempt_at = min(first_attempt_at, ?), tried_at = min(tried_at, ?)
WHERE sink = ? AND status = 'pending' AND due_at > ? AND due_at < ?
    AND event IN (SELECT value FROM json_each(?))
"""


def later(
    db: sqlite3.Connection, sink: str, span: DueSpan, *, ahead: Position, last: int
) -> tuple[str, Position | None]:
    """Return some deliveries of a span, from a position downwards, up to the event `last`.

    They are a JSON array, `[]` for none; with the position to go on from, None at the end.
    """
    due_ms, events = db.execute(_LATER[span.tier], (sink, span.after, *ahead, last)).fetchone()
    found = orjson.loads(events)
    return events, Position(due_ms, found[-1]) if len(found) == STEP_ROWS else None


def bring_forward(
    db: sqlite3.Connection, sink: str, span: DueSpan, events: str, now_ms: int
) -> int:
    """Set a new due time; return how many of the events, a JSON array, were due later."""
    times = (span.due, now_ms, now_ms)
    return db.execute(_BRING_FORWARD, (*times, sink, span.after, span.before, events)).rowcount
