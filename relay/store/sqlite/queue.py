"""Places of an event's pending deliveries in the queues of their sinks."""

from relay.store.events import AHEAD_MAX, Queued
from relay.store.sqlite.driver import sqlite3
from relay.store.tiers import HELD_MS, OF_TIER

_PENDING = f"""
SELECT sink, iif(due_at >= {HELD_MS}, due_at - {HELD_MS}, due_at), turn
FROM deliveries WHERE event = ? AND status = 'pending' AND {{belongs}} ORDER BY sink
"""
# Held ones too: each is due once the one before it has ended.
_AHEAD = f"""
SELECT count(*) FROM (
    SELECT 1 FROM deliveries WHERE sink = :sink AND status = 'pending' AND {{belongs}}
        AND (due_at, event) < (:due, :event)
    UNION ALL
    SELECT 1 FROM deliveries WHERE sink = :sink AND status = 'pending' AND {{belongs}}
        AND due_at >= {HELD_MS} AND (due_at, event) < ({HELD_MS} + :due, :event)
    LIMIT {AHEAD_MAX + 1}
)
"""
_OF_TURN = f"""
SELECT count(*) FROM (
    SELECT 1 FROM deliveries WHERE sink = :sink AND turn = :turn AND event < :event
    LIMIT {AHEAD_MAX + 1}
)
"""


def queued(db: sqlite3.Connection, event: int) -> list[Queued]:
    """Count what is ahead of each pending delivery of an event."""
    return [
        Queued.of(
            sink,
            db.execute(_AHEAD.format(belongs=belongs), values).fetchone()[0],
            db.execute(_OF_TURN, values).fetchone()[0],
        )
        for belongs in OF_TIER.values()
        for sink, due_ms, turn in db.execute(_PENDING.format(belongs=belongs), (event,)).fetchall()
        for values in ({"sink": sink, "event": event, "due": due_ms, "turn": turn},)
    ]
