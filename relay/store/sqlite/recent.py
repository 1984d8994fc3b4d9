"""Recent events and attempts in SQL, oldest first, page by page."""

from relay.store.records import Accepted, Attempted
from relay.store.replays import Mark
from relay.store.sqlite.driver import Row, sqlite3

# Both tables grow at the end, so a scan back from there reads only newer rows.
_MARKS = """
SELECT
    coalesce((SELECT seq FROM events WHERE received_at < :since ORDER BY seq DESC LIMIT 1), 0),
    coalesce((
        SELECT rowid FROM attempts WHERE started_at + duration_ms < :since
        ORDER BY rowid DESC LIMIT 1
    ), 0)
"""
_ACCEPTED = """
SELECT seq, received_at, source, id, kind, reconstructed,
    (SELECT group_concat(sink) FROM deliveries WHERE event = e.seq)
FROM events e WHERE seq > ? ORDER BY seq LIMIT ?
"""
_ATTEMPTED = """
SELECT a.rowid, a.started_at, a.duration_ms, a.result, a.status, a.reason, a.replay,
    a.sink, e.source, e.id, e.kind, e.received_at
FROM attempts a JOIN events e ON e.seq = a.event WHERE a.rowid > ? ORDER BY a.rowid LIMIT ?
"""


def mark(db: sqlite3.Connection, since_ms: int) -> Mark:
    """Return the mark after which everything is newer than this."""
    return Mark(*db.execute(_MARKS, {"since": since_ms}).fetchone())


def accepted(db: sqlite3.Connection, after: int, *, limit: int) -> list[Accepted]:
    """Return the oldest events after this one."""
    return [_accepted(row) for row in db.execute(_ACCEPTED, (after, limit))]


def _accepted(row: Row) -> Accepted:
    number, received_ms, source, id_, kind, reconstructed, sinks = row
    names = sorted(sinks.split(",")) if sinks else []
    return Accepted(number, received_ms, source, id_, kind, names, bool(reconstructed))


def attempted(db: sqlite3.Connection, after: int, *, limit: int) -> list[Attempted]:
    """Return the oldest attempts after this one."""
    return [Attempted(*row) for row in db.execute(_ATTEMPTED, (after, limit))]
