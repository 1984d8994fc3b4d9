"""What the SQLite store asks and writes: plain functions of a connection, run on its thread."""

import hashlib
from collections.abc import Iterable, Sequence

import orjson

from relay.delivery import MOVES, STATUS_AFTER, Delivery, Settlement, Status
from relay.event import Event, Outcome, Unreadable
from relay.routing import Verdict
from relay.store import Lease
from relay.store.driver import Row, sqlite3

_ADD_EVENT = """
INSERT INTO events (source, id, kind, created_at, received_at, digest, headers, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_ADD_DELIVERY = """
INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason) VALUES (?, ?, ?, ?, ?, ?)
"""
_KNOWN_DIGEST = "SELECT digest FROM events WHERE source = ? AND id = ?"
_KEEP = """
INSERT INTO unreadable (source, digest, received_at, reason, headers, body)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_DUE = """
SELECT event FROM deliveries
WHERE sink = ? AND status = 'pending' AND due_at <= ? ORDER BY due_at, event LIMIT ?
"""
_NEXT_DUE = """
SELECT min(due_at) FROM deliveries WHERE sink = ? AND status = 'pending' AND due_at > ?
"""
_DELIVERY = """
SELECT d.event, d.sink, d.attempts, d.first_attempt_at,
       e.source, e.id, e.kind, e.created_at, e.received_at, e.body, e.headers
FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.event = ? AND d.sink = ?
"""
_SETTLE = """
UPDATE deliveries
SET status = ?, attempts = attempts + ?, due_at = ?, settled_at = ?, reason = ?,
    first_attempt_at = coalesce(first_attempt_at, ?)
WHERE event = ? AND sink = ? AND status = ? AND attempts = ?
"""
_ADD_ATTEMPT = """
INSERT INTO attempts (event, sink, started_at, duration_ms, result, status, reason, answer)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_OLDEST = """
SELECT e.received_at FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'pending' ORDER BY d.event LIMIT 1
"""
_TALLY = "SELECT sink, count(*) FROM deliveries WHERE status = '{status}' GROUP BY sink"
_REMEMBER = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_RECALL = "SELECT value FROM state WHERE name = ?"


def accept(db: sqlite3.Connection, event: Event, verdicts: Sequence[Verdict]) -> Outcome:
    """Insert an event and its deliveries, or say what the known one is to it."""
    digest = hashlib.sha256(event.body).digest()
    cursor = db.execute(
        _ADD_EVENT,
        (
            event.source,
            event.id,
            event.kind,
            event.created_at,
            event.received_ms,
            digest,
            orjson.dumps(event.headers),
            event.body,
        ),
    )
    if cursor.rowcount == 0:
        known = db.execute(_KNOWN_DIGEST, (event.source, event.id)).fetchone()[0]
        return "duplicate" if known == digest else "conflict"
    rows = [_delivery_row(cursor.lastrowid, event, verdict) for verdict in verdicts]
    db.executemany(_ADD_DELIVERY, rows)
    return "accepted"


def _delivery_row(seq: int | None, event: Event, verdict: Verdict) -> Row:
    now_ms = event.received_ms
    if verdict.outcome == "fails":
        return (seq, verdict.sink, Status.DEAD.value, now_ms, now_ms, verdict.why)
    return (seq, verdict.sink, Status.PENDING.value, now_ms, None, None)


def keep(db: sqlite3.Connection, unreadable: Unreadable) -> None:
    """Insert a raw request that holds no event, once per body."""
    digest = hashlib.sha256(unreadable.body).digest()
    headers = orjson.dumps(unreadable.headers)
    row = (unreadable.source, digest, unreadable.received_ms, unreadable.reason)
    db.execute(_KEEP, (*row, headers, unreadable.body))


def due(
    db: sqlite3.Connection, sink: str, *, now_ms: int, limit: int, leased: frozenset[int]
) -> Lease:
    """The longest due deliveries that are not leased, and when the one after them is due."""
    rows = db.execute(_DUE, (sink, now_ms, limit + len(leased))).fetchall()
    free = [seq for (seq,) in rows if seq not in leased]
    deliveries = tuple(_delivery(db, seq, sink) for seq in free[:limit])
    if len(free) >= limit:
        return Lease(deliveries, now_ms)
    return Lease(deliveries, db.execute(_NEXT_DUE, (sink, now_ms)).fetchone()[0])


def _delivery(db: sqlite3.Connection, seq: int, sink: str) -> Delivery:
    row = db.execute(_DELIVERY, (seq, sink)).fetchone()
    return Delivery(
        seq=row[0],
        sink=row[1],
        attempts=row[2],
        first_attempt_ms=row[3],
        event=Event(
            source=row[4],
            id=row[5],
            kind=row[6],
            created_at=row[7],
            received_ms=row[8],
            body=row[9],
            headers=tuple((name, value) for name, value in orjson.loads(row[10])),
        ),
    )


def settle(db: sqlite3.Connection, settlement: Settlement) -> Status:
    """Record an attempt and move its delivery; return the status that it has now.

    A delivery that somebody else has moved meanwhile keeps what it has.
    """
    delivery, attempt = settlement.delivery, settlement.attempt
    status = STATUS_AFTER[attempt.result]
    if status not in MOVES[Status.PENDING]:
        raise ValueError(f"no delivery moves from pending to {status}")
    counted = 0 if attempt.result == "parked" else 1
    ended_ms = attempt.started_ms + attempt.duration_ms
    settled_ms = None if status is Status.PENDING else ended_ms
    key = (delivery.seq, delivery.sink)
    db.execute(
        _SETTLE,
        (
            status.value,
            counted,
            settlement.due_ms,
            settled_ms,
            attempt.reason or None,
            attempt.started_ms if counted else None,
            *key,
            Status.PENDING.value,
            delivery.attempts,
        ),
    )
    db.execute(
        _ADD_ATTEMPT,
        (
            *key,
            attempt.started_ms,
            attempt.duration_ms,
            attempt.result,
            attempt.status,
            attempt.reason,
            attempt.answer,
        ),
    )
    return status


def oldest(db: sqlite3.Connection, sinks: Iterable[str]) -> dict[str, int]:
    """When each sink's oldest pending event was received."""
    found = ((sink, db.execute(_OLDEST, (sink,)).fetchone()) for sink in sinks)
    return {sink: row[0] for sink, row in found if row is not None}


def tallies(db: sqlite3.Connection) -> dict[str, dict[Status, int]]:
    """How many deliveries of each sink are pending and dead."""
    counts: dict[str, dict[Status, int]] = {}
    for status in (Status.PENDING, Status.DEAD):
        for sink, count in db.execute(_TALLY.format(status=status.value)):
            counts.setdefault(sink, dict.fromkeys(Status, 0))[status] = count
    return counts


def remember(db: sqlite3.Connection, name: str, value: int) -> None:
    """Write one of the relay's own values."""
    db.execute(_REMEMBER, (name, value))


def recall(db: sqlite3.Connection, name: str) -> int | None:
    """Read one of the relay's own values."""
    row = db.execute(_RECALL, (name,)).fetchone()
    return None if row is None else int(row[0])


def faults(db: sqlite3.Connection) -> tuple[str, ...]:
    """What SQLite's own checks find wrong, the words of `PRAGMA quick_check` for it."""
    found = [str(row[0]) for row in db.execute("PRAGMA quick_check")]
    orphans = db.execute("PRAGMA foreign_key_check").fetchall()
    found += [f"row {row[1]} of {row[0]} names an event that is not there" for row in orphans]
    return tuple(text for text in found if text != "ok")
