"""Overview of the store, read from its indexes alone."""

from collections.abc import Collection

from relay.store.overview import DeadLetters, Overview
from relay.store.postgres.driver import Database

_ALIVE = "SELECT value FROM relay.state WHERE name = 'heartbeat'"
_UNREADABLE = "SELECT count(*) FROM relay.unreadable"
_UNREADABLE_AT = "SELECT received_at FROM relay.unreadable ORDER BY number {order} LIMIT 1"
# By tier, because each has its index.
_REPLAYING = """
SELECT d.sink, min(r.created_at) FROM (
    SELECT DISTINCT sink, replay FROM relay.deliveries
    WHERE status = 'pending' AND replay IS NOT NULL AND tries = 0
    UNION
    SELECT sink, replay FROM relay.deliveries WHERE status = 'pending' AND tries > 0
) AS d JOIN relay.replays r ON r.id = d.replay GROUP BY d.sink
"""
_DEAD = """
SELECT s.name, first.settled_at, last.reason
FROM unnest(%b::text[]) AS s (name)
LEFT JOIN LATERAL (
    SELECT settled_at FROM relay.deliveries
    WHERE sink = s.name AND status = 'dead' ORDER BY settled_at LIMIT 1
) AS first ON TRUE
LEFT JOIN LATERAL (
    SELECT reason FROM relay.deliveries
    WHERE sink = s.name AND status = 'dead'
    ORDER BY settled_at DESC, reason COLLATE "C" LIMIT 1
) AS last ON TRUE
"""


def overview(db: Database, sinks: Collection[str]) -> Overview:
    """Read the overview; `sinks` are those with dead letters."""
    dead = db.execute(_DEAD, (list(sinks),)).fetchall()
    return Overview(
        alive_ms=_value(db, _ALIVE),
        replaying_ms=dict(db.execute(_REPLAYING).fetchall()),
        dead={sink: DeadLetters(since_ms=at_ms, reason=why) for sink, at_ms, why in dead},
        unreadable=_value(db, _UNREADABLE) or 0,
        unreadable_since_ms=_value(db, _UNREADABLE_AT.format(order="ASC")),
        unreadable_ms=_value(db, _UNREADABLE_AT.format(order="DESC")),
    )


def _value(db: Database, sql: str) -> int | None:
    row = db.execute(sql).fetchone()
    return None if row is None else int(row[0])
