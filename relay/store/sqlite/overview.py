"""Overview of a SQLite store, read from its indexes alone."""

from collections.abc import Iterable

from relay.store.overview import DeadLetters, Overview
from relay.store.sqlite.driver import sqlite3

_ALIVE = "SELECT value FROM state WHERE name = 'heartbeat'"
_REPLAYING = """
SELECT d.sink, min(r.created_at) FROM deliveries d JOIN replays r ON r.id = d.replay
WHERE d.status = 'pending' AND d.replay IS NOT NULL GROUP BY d.sink
"""
_DEAD = """
SELECT settled_at, reason FROM deliveries WHERE sink = ? AND status = 'dead'
ORDER BY settled_at {order}, reason LIMIT 1
"""
_UNREADABLE = "SELECT count(*) FROM unreadable"
_UNREADABLE_AT = "SELECT received_at FROM unreadable ORDER BY rowid {order} LIMIT 1"


def overview(db: sqlite3.Connection, sinks: Iterable[str]) -> Overview:
    """Read the overview; `sinks` are those with dead letters."""
    return Overview(
        alive_ms=_value(db, _ALIVE),
        replaying_ms=dict(db.execute(_REPLAYING).fetchall()),
        dead={sink: _dead(db, sink) for sink in sinks},
        unreadable=_value(db, _UNREADABLE) or 0,
        unreadable_since_ms=_value(db, _UNREADABLE_AT.format(order="ASC")),
        unreadable_ms=_value(db, _UNREADABLE_AT.format(order="DESC")),
    )


def _value(db: sqlite3.Connection, sql: str) -> int | None:
    row = db.execute(sql).fetchone()
    return None if row is None else int(row[0])


def _dead(db: sqlite3.Connection, sink: str) -> DeadLetters:
    first = db.execute(_DEAD.format(order="ASC"), (sink,)).fetchone()
    last = db.execute(_DEAD.format(order="DESC"), (sink,)).fetchone()
    return DeadLetters(
        since_ms=None if first is None else first[0], reason=None if last is None else last[1]
    )
