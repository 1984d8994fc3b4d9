"""Places of an event's pending deliveries in the queues of their sinks."""

from relay.store.events import AHEAD_MAX, Queued
from relay.store.postgres.driver import Database
from relay.store.tiers import OF_TIER

# The counts end at a limit, so that each reads a bounded piece of an index.
_QUEUED = " UNION ALL ".join(
    f"""
SELECT own.sink, (
    SELECT count(*) FROM (
        SELECT 1 FROM relay.deliveries WHERE sink = own.sink AND status = 'pending' AND {belongs}
            AND (due_at, event) < (own.due_at, own.event)
        LIMIT {AHEAD_MAX + 1}
    ) AS ahead
), (
    SELECT count(*) FROM (
        SELECT 1 FROM relay.deliveries
        WHERE sink = own.sink AND status = 'pending' AND turn = own.turn AND event < own.event
        LIMIT {AHEAD_MAX + 1}
    ) AS of_turn
)
FROM (
    SELECT event, sink, due_at, turn FROM relay.deliveries
    WHERE event = %(event)s AND status = 'pending' AND {belongs}
) AS own
"""
    for belongs in OF_TIER.values()
)


def queued(db: Database, event: int) -> list[Queued]:
    """Count what is ahead of each pending delivery of an event."""
    return [Queued.of(*row) for row in db.execute(_QUEUED, {"event": event}).fetchall()]
