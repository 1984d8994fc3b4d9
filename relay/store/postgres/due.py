"""Changes of due times."""

from collections.abc import Sequence

from relay.store.postgres.driver import Database
from relay.store.tiers import OF_TIER, DueSpan, Position

STEP_ROWS = 1000
"""Deliveries brought forward per transaction, so that others can run in between."""

_LAST_EVENT = "SELECT coalesce(max(seq), 0) FROM relay.events"
_LATER = {
    tier: f"""
SELECT due_at, event FROM relay.deliveries
WHERE sink = %s AND status = 'pending' AND {belongs}
    AND due_at > %s AND (due_at, event) < (%s, %s) AND event <= %s
ORDER BY due_at DESC, event DESC LIMIT {STEP_ROWS}
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


def last_event(db: Database) -> int:
    """Return the number of the newest event; one that is committed later is not late."""
    return int(db.execute(_LAST_EVENT).fetchall()[0][0])


def step(
    db: Database, sink: str, span: DueSpan, *, ahead: Position, last: int, now_ms: int
) -> tuple[int, Position | None]:
    """Bring some deliveries of a span forward, from a position downwards, up to the event `last`.

    Returns their number, and the position to go on from, None at the end. Both statements commit
    by themselves.
    """
    values = (sink, span.after, *ahead, last)
    later = [Position(*row) for row in db.execute(_LATER[span.tier], values).fetchall()]
    if not later:
        return 0, None
    count = _bring_forward(db, sink, span, [each.event for each in later], now_ms)
    return count, later[-1] if len(later) == STEP_ROWS else None


def single(
    db: Database, sink: str, span: DueSpan, *, event: int, now_ms: int
) -> tuple[int, Position | None]:
    """Bring one delivery forward; the same as `step`."""
    return _bring_forward(db, sink, span, [event], now_ms), None


def _bring_forward(
    db: Database, sink: str, span: DueSpan, events: Sequence[int], now_ms: int
) -> int:
    values = {
        "due": span.due,
        "now": now_ms,
        "events": events,
        "sink": sink,
        "after": span.after,
        "before": span.before,
    }
    return db.execute(_BRING_FORWARD[span.tier], values).rowcount
