"""Changes of due times."""

from collections.abc import Sequence

from relay.store.postgres.driver import Database
from relay.store.tiers import OF_TIER, Span

STEP_ROWS = 1000
"""Deliveries brought forward per transaction, so that others can run in between."""

_LATER = {
    tier: f"""
SELECT event FROM relay.deliveries
WHERE sink = %s AND status = 'pending' AND {belongs} AND due_at > %s AND due_at < %s
ORDER BY due_at, event LIMIT {STEP_ROWS}
"""
    for tier, belongs in OF_TIER.items()
}
# A clock that was ahead has distorted these times too.
_BRING_FORWARD = {
    tier: f"""
UPDATE relay.deliveries AS d
SET due_at = %(due)s,
    first_attempt_at = CASE WHEN first_attempt_at > %(now)s THEN %(now)s ELSE first_attempt_at END,
    tried_at = CASE WHEN tried_at > %(now)s THEN %(now)s ELSE tried_at END
FROM (
    SELECT event FROM unnest(%(events)b::bigint[]) AS later (event) ORDER BY event
) AS later
WHERE d.event = later.event AND sink = %(sink)s AND status = 'pending' AND {belongs}
    AND due_at > %(after)s AND due_at < %(before)s
"""
    for tier, belongs in OF_TIER.items()
}


def later(db: Database, sink: str, span: Span) -> list[int]:
    """Return some deliveries of a span."""
    rows = db.execute(_LATER[span.tier], (sink, span.after, span.before)).fetchall()
    return [seq for (seq,) in rows]


def bring_forward(
    db: Database, sink: str, span: Span, events: Sequence[int], *, now_ms: int
) -> int:
    """Set a new due time; return how many of the events were due later."""
    values = {
        "due": span.due,
        "now": now_ms,
        "events": events,
        "sink": sink,
        "after": span.after,
        "before": span.before,
    }
    return db.execute(_BRING_FORWARD[span.tier], values).rowcount
