"""What the SQLite store asks and writes: plain functions of a connection, run on its thread."""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence

import orjson

from relay.delivery import MOVES, STATUS_AFTER, Delivery, Settlement, Status
from relay.event import Event, Outcome, Unreadable
from relay.routing import Verdict
from relay.store import Lease, Tier, rows
from relay.store.driver import Row, sqlite3

Arrival = tuple[Event, Sequence[Verdict]]

_LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM events"
_ADD_EVENTS = """
INSERT INTO events (seq, source, id, kind, created_at, received_at, digest, headers, body)
VALUES {rows} ON CONFLICT DO NOTHING
"""
_ADDED = "SELECT json_group_array(seq) FROM events WHERE seq >= ?"
_ADD_DELIVERIES = """
INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason) VALUES {rows}
"""
_KNOWN_DIGEST = "SELECT digest FROM events WHERE source = ? AND id = ?"
_KEEP = """
INSERT INTO unreadable (source, digest, received_at, reason, headers, body)
VALUES {rows} ON CONFLICT DO NOTHING
"""
_OF_TIER: dict[Tier, str] = {"live": "replay IS NULL", "replay": "replay IS NOT NULL"}
DUE = {
    tier: f"""
SELECT event FROM deliveries
WHERE sink = ? AND status = 'pending' AND {belongs} AND due_at <= ?
ORDER BY due_at, event LIMIT ?
"""
    for tier, belongs in _OF_TIER.items()
}
# In one row, because Python's lock changes hands at each row too.
_DUE = {tier: f"SELECT json_group_array(event) FROM ({question})" for tier, question in DUE.items()}
_NEXT_DUE = {
    tier: f"""
SELECT min(due_at) FROM deliveries
WHERE sink = ? AND status = 'pending' AND {belongs} AND due_at > ?
"""
    for tier, belongs in _OF_TIER.items()
}
_DELIVERIES = """
SELECT d.event, d.sink, d.attempts, d.first_attempt_at, d.replay,
       e.source, e.id, e.kind, e.created_at, e.received_at, e.body, e.headers
FROM json_each(?) AS chosen
CROSS JOIN deliveries AS d ON d.event = chosen.value AND d.sink = ?
CROSS JOIN events AS e ON e.seq = d.event
"""
# Python counts the changed rows only of a statement that begins with UPDATE.
_SETTLE = """
UPDATE deliveries AS d
SET status = e.status, due_at = e.due_at, settled_at = e.settled_at, reason = e.reason,
    attempts = d.attempts + e.counts,
    first_attempt_at = coalesce(d.first_attempt_at, iif(e.counts, e.started_at, NULL))
FROM (
    SELECT column1 AS event, column2 AS sink, column3 AS status, column4 AS due_at,
        column5 AS settled_at, column6 AS reason, column7 AS started_at, column8 AS counts,
        column9 AS attempts
    FROM (VALUES {rows})
) AS e
WHERE d.event = e.event AND d.sink = e.sink AND d.status = 'pending' AND d.attempts = e.attempts
"""
_ADD_ATTEMPTS = """
INSERT INTO attempts
    (event, sink, started_at, duration_ms, result, status, reason, answer, replay)
VALUES {rows}
"""
_LEFT = """
SELECT e.body IS NOT NULL FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.event = ? AND d.sink = ?
"""
_OLDEST = """
SELECT e.received_at FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'pending' AND d.replay IS NULL ORDER BY d.event LIMIT 1
"""
_TALLY = "SELECT sink, count(*) FROM deliveries WHERE status = '{status}' GROUP BY sink"
_REMEMBER = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_RECALL = "SELECT value FROM state WHERE name = ?"


class Acceptance:
    """Inserts events with their deliveries; says of each known one what it is to the first.

    Numbers the events by itself, which saves a question to the database per transaction.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._last: int = db.execute(_LAST_SEQ).fetchone()[0]

    def __call__(self, db: sqlite3.Connection, arrivals: Sequence[Arrival]) -> list[Outcome]:
        first = self._last + 1
        # A transaction that fails leaves a gap, which does no harm.
        self._last += len(arrivals)
        events = [_event_row(seq, event) for seq, (event, _) in enumerate(arrivals, first)]
        if rows.write(db, _ADD_EVENTS, events) == len(events):
            new: Container[int] = range(first, self._last + 1)
        else:
            new = set(orjson.loads(db.execute(_ADDED, (first,)).fetchone()[0]))
        deliveries = [
            _delivery_row(seq, event, verdict)
            for seq, (event, verdicts) in enumerate(arrivals, first)
            if seq in new
            for verdict in verdicts
        ]
        rows.write(db, _ADD_DELIVERIES, deliveries)
        return ["accepted" if row[0] in new else _compare(db, row) for row in events]


def _event_row(seq: int, event: Event) -> Row:
    return (
        seq,
        event.source,
        event.id,
        event.kind,
        event.created_at,
        event.received_ms,
        hashlib.sha256(event.body).digest(),
        event.headers,
        event.body,
    )


def _compare(db: sqlite3.Connection, row: Row) -> Outcome:
    _, source, event_id, _, _, _, digest, _, _ = row
    known = db.execute(_KNOWN_DIGEST, (source, event_id)).fetchone()[0]
    return "duplicate" if known == digest else "conflict"


def _delivery_row(seq: int, event: Event, verdict: Verdict) -> Row:
    now_ms = event.received_ms
    if verdict.outcome == "fails":
        return (seq, verdict.sink, Status.DEAD.value, now_ms, now_ms, verdict.why)
    return (seq, verdict.sink, Status.PENDING.value, now_ms, None, None)


def keep(db: sqlite3.Connection, requests: Sequence[Unreadable]) -> list[Outcome]:
    """Insert raw requests that hold no event, once per body."""
    kept = [
        (
            request.source,
            hashlib.sha256(request.body).digest(),
            request.received_ms,
            request.reason,
            request.headers,
            request.body,
        )
        for request in requests
    ]
    rows.write(db, _KEEP, kept)
    return ["unreadable"] * len(kept)


def due(
    db: sqlite3.Connection,
    sink: str,
    *,
    now_ms: int,
    limits: Mapping[Tier, int],
    leased: frozenset[int],
) -> Lease:
    """The longest due deliveries of each tier that are not leased, and when more come due."""
    deliveries: list[Delivery] = []
    looks: list[int] = []
    for tier, limit in limits.items():
        found = db.execute(_DUE[tier], (sink, now_ms, limit + len(leased))).fetchone()[0]
        free = [seq for seq in orjson.loads(found) if seq not in leased]
        chosen = orjson.dumps(free[:limit]).decode()
        deliveries += [_delivery(row) for row in db.execute(_DELIVERIES, (chosen, sink))]
        if len(free) >= limit:
            looks.append(now_ms)
        else:
            looks += [ms for (ms,) in db.execute(_NEXT_DUE[tier], (sink, now_ms)) if ms is not None]
    return Lease(tuple(deliveries), min(looks, default=None))


def _delivery(row: Row) -> Delivery:
    return Delivery(
        seq=row[0],
        sink=row[1],
        attempts=row[2],
        first_attempt_ms=row[3],
        replay=row[4],
        event=Event(
            source=row[5],
            id=row[6],
            kind=row[7],
            created_at=row[8],
            received_ms=row[9],
            body=row[10],
            headers=row[11],
        ),
    )


class Overtaken(Exception):
    """Some of several deliveries have moved meanwhile: written one by one, it shows which."""


def settle(db: sqlite3.Connection, settlements: Sequence[Settlement]) -> list[Status | None]:
    """Record attempts and move their deliveries; return the statuses that these have now.

    None for a delivery that has moved meanwhile: it stays, though the attempt did happen.
    Raises Overtaken.
    """
    moved = rows.write(db, _SETTLE, [_settled_row(settlement) for settlement in settlements])
    attempts = [_attempt_row(settlement) for settlement in settlements]
    if moved == len(settlements):
        rows.write(db, _ADD_ATTEMPTS, attempts)
        return [STATUS_AFTER[settlement.attempt.result] for settlement in settlements]
    if len(settlements) > 1:
        raise Overtaken
    left = db.execute(_LEFT, attempts[0][:2]).fetchone()
    # What has been forgotten altogether is not to leave an attempt behind.
    if left is not None:
        has_body = bool(left[0])
        rows.write(db, _ADD_ATTEMPTS, [_attempt_row(settlements[0], with_answer=has_body)])
    return [None]


def _settled_row(settlement: Settlement) -> Row:
    delivery, attempt = settlement.delivery, settlement.attempt
    status = STATUS_AFTER[attempt.result]
    if status not in MOVES[Status.PENDING]:
        raise ValueError(f"no delivery moves from pending to {status}")
    ended_ms = attempt.started_ms + attempt.duration_ms
    return (
        delivery.seq,
        delivery.sink,
        status.value,
        settlement.due_ms,
        None if status is Status.PENDING else ended_ms,
        attempt.reason or None,
        attempt.started_ms,
        0 if attempt.result == "parked" else 1,
        delivery.attempts,
    )


def _attempt_row(settlement: Settlement, *, with_answer: bool = True) -> Row:
    """With the event's body goes what a far end may have repeated of it."""
    delivery, attempt = settlement.delivery, settlement.attempt
    return (
        delivery.seq,
        delivery.sink,
        attempt.started_ms,
        attempt.duration_ms,
        attempt.result,
        attempt.status,
        attempt.reason,
        attempt.answer if with_answer else "",
        delivery.replay,
    )


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


def remember(db: sqlite3.Connection, values: Sequence[tuple[str, int]]) -> list[None]:
    """Write some of the relay's own values."""
    db.executemany(_REMEMBER, values)
    return [None] * len(values)


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
