"""How events come into the database, each with its deliveries, in one statement for many."""

import hashlib
from collections.abc import Container, Sequence

import orjson

from relay.event import Event, Outcome, Unreadable
from relay.routing import Verdict
from relay.store import rows
from relay.store.driver import Row, sqlite3

Arrival = tuple[Event, Sequence[Verdict]]

TRIGGER = """
CREATE TEMP VIEW arrivals AS
SELECT seq, source, id, kind, created_at, received_at, digest, headers, body, '{}' AS verdicts
FROM main.events;

CREATE TEMP TRIGGER accept INSTEAD OF INSERT ON arrivals BEGIN
    INSERT INTO events (seq, source, id, kind, created_at, received_at, digest, headers, body)
    VALUES (
        NEW.seq, NEW.source, NEW.id, NEW.kind, NEW.created_at, NEW.received_at, NEW.digest,
        NEW.headers, NEW.body
    ) ON CONFLICT DO NOTHING;
    INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason)
    SELECT
        NEW.seq, key, iif(atom IS NULL, 'pending', 'dead'), NEW.received_at,
        iif(atom IS NULL, NULL, NEW.received_at), atom
    FROM json_each(NEW.verdicts)
    WHERE changes() > 0;
END;
"""
"""`verdicts` is an object of the sinks: null, or why the rule failed on the event."""

_LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM events"
_ADD = "INSERT INTO arrivals VALUES {rows}"
_ADDED = "SELECT json_group_array(seq) FROM events WHERE seq >= ?"
_KNOWN_DIGEST = "SELECT digest FROM events WHERE source = ? AND id = ?"
_KEEP = """
INSERT INTO unreadable (source, digest, received_at, reason, headers, body)
VALUES {rows} ON CONFLICT DO NOTHING
"""


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
        events = [_row(seq, *arrival) for seq, arrival in enumerate(arrivals, first)]
        before = db.total_changes
        rows.write(db, _ADD, events)
        if db.total_changes - before == sum(1 + len(verdicts) for _, verdicts in arrivals):
            return ["accepted"] * len(arrivals)
        new: Container[int] = set(orjson.loads(db.execute(_ADDED, (first,)).fetchone()[0]))
        return ["accepted" if row[0] in new else _compare(db, row) for row in events]


def _row(seq: int, event: Event, verdicts: Sequence[Verdict]) -> Row:
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
        orjson.dumps(
            {each.sink: each.why if each.outcome == "fails" else None for each in verdicts}
        ).decode(),
    )


def _compare(db: sqlite3.Connection, row: Row) -> Outcome:
    _, source, event_id, _, _, _, digest, *_ = row
    known = db.execute(_KNOWN_DIGEST, (source, event_id)).fetchone()[0]
    return "duplicate" if known == digest else "conflict"


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
