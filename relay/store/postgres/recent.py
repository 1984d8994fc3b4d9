"""Recent events and attempts in SQL, oldest first, page by page."""

from relay.store.postgres.driver import Database
from relay.store.records import Accepted, Attempted
from relay.store.replays import Mark

# Both tables grow at the end, so a scan back from there reads only newer rows.
_MARKS = """
SELECT
    coalesce((
        SELECT seq FROM relay.events WHERE received_at < %s ORDER BY seq DESC LIMIT 1
    ), 0),
    coalesce((
        SELECT number FROM relay.attempts WHERE started_at + duration_ms < %s
        ORDER BY number DESC LIMIT 1
    ), 0)
"""
_ACCEPTED = """
SELECT seq, received_at, source, id, kind,
    ARRAY(SELECT sink FROM relay.deliveries WHERE event = e.seq ORDER BY sink), reconstructed <> 0
FROM relay.events e WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT %s
"""
_ATTEMPTED = """
SELECT a.number, a.started_at, a.duration_ms, a.result, a.status, a.reason, a.replay,
    a.sink, e.source, e.id, e.kind, e.received_at
FROM relay.attempts a JOIN relay.events e ON e.seq = a.event
WHERE a.number > %s AND a.number <= %s ORDER BY a.number LIMIT %s
"""


def mark(db: Database, since_ms: int) -> Mark:
    """Return the mark after which everything is newer than this."""
    return Mark(*db.execute(_MARKS, (since_ms, since_ms)).fetchall()[0])


def accepted(db: Database, after: int, until: int, *, limit: int) -> list[Accepted]:
    """Return the oldest events after one, up to another."""
    return [Accepted(*row) for row in db.execute(_ACCEPTED, (after, until, limit)).fetchall()]


def attempted(db: Database, after: int, until: int, *, limit: int) -> list[Attempted]:
    """Return the oldest attempts after one, up to another."""
    return [Attempted(*row) for row in db.execute(_ATTEMPTED, (after, until, limit)).fetchall()]
