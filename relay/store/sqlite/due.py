"""Changes of due times, and discards of pending deliveries.

A delivery that waits for another of its turn stays held, whatever its due time.
"""

from relay.core.delivery import Status
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import Moved
from relay.store.tiers import OF_TIER, Span

STEP_ROWS = 1000
"""Deliveries brought forward per transaction, so that others can run in between."""

_LATER = {
    tier: f"""
SELECT json_group_array(event) FROM (
    SELECT event FROM deliveries
    WHERE sink = ? AND status = 'pending' AND {belongs} AND due_at > ? AND due_at < ?
    LIMIT {STEP_ROWS}
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
_GIVE_UP = """
UPDATE deliveries SET status = 'discarded', settled_at = ?,
    reason = 'discarded by an operator' || iif(reason IS NULL, '', ' after: ' || reason)
WHERE event = ? AND sink = ? AND status = 'pending'
"""


def later(db: sqlite3.Connection, sink: str, span: Span) -> str:
    """Return some deliveries of a span, `[]` for none."""
    row = db.execute(_LATER[span.tier], (sink, span.after, span.before)).fetchone()
    return str(row[0])


def bring_forward(db: sqlite3.Connection, sink: str, span: Span, events: str, now_ms: int) -> int:
    """Set a new due time; return how many of the events, a JSON array, were due later."""
    times = (span.due, now_ms, now_ms)
    return db.execute(_BRING_FORWARD, (*times, sink, span.after, span.before, events)).rowcount


def give_up(db: sqlite3.Connection, event: int, sink: str, *, now_ms: int) -> Moved:
    """Discard a pending delivery."""
    count = db.execute(_GIVE_UP, (now_ms, event, sink)).rowcount
    return Moved({(sink, Status.PENDING): -count, (sink, Status.DISCARDED): count})
