"""Insertion of events with their deliveries, many in one statement.

The rows go into a temporary view, whose triggers write the other tables. Python's lock changes
hands several times at each statement, and requests wait for it: with four statements, a quarter
fewer events were acknowledged.
"""

import secrets
from collections.abc import Container, Sequence
from operator import attrgetter

import orjson

from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store.ordering import OrderingKeys
from relay.store.rows import digest
from relay.store.sqlite import bulk, id_periods
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.group_commit import transaction
from relay.store.sqlite.known_ids import KnownIds, as_json
from relay.store.sqlite.ordering import HELD_BACK
from relay.store.sqlite.totals import TRIGGERED

Arrival = tuple[Event, Sequence[Verdict], Total]
"""An event, its sinks, and the total that it adds to."""

Numbered = tuple[int, Arrival]

_VIEW = """
CREATE TEMP VIEW {view} AS
SELECT seq, source, id, kind, created_at, received_at, digest, headers, body,
    '' AS verdicts, '' AS known_kind, '' AS milestone, '' AS elsewhere
FROM main.events;

CREATE TEMP TRIGGER accept_{view} INSTEAD OF INSERT ON {view} BEGIN
    INSERT INTO events (seq, source, id, kind, created_at, received_at, digest, headers, body)
    SELECT
        NEW.seq, NEW.source, NEW.id, NEW.kind, NEW.created_at, NEW.received_at, NEW.digest,
        NEW.headers, NEW.body
    WHERE NEW.elsewhere IS NULL OR NOT EXISTS (SELECT 1 {known});
    {totals}
    INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason, turn)
    SELECT
        NEW.seq, key, iif(type = 'text', 'dead', 'pending'), NEW.received_at + {held_back},
        iif(type = 'text', NEW.received_at, NULL), iif(type = 'text', atom, NULL), {turn}
    FROM json_each(NEW.verdicts)
    WHERE changes() > 0;
END;
"""
_TURN = "iif(type = 'integer', atom, NULL)"
_ELSEWHERE = id_periods.IN_PERIODS.format(periods="NEW.elsewhere", source="NEW.source", id="NEW.id")
TRIGGER = _VIEW.format(
    view="arrivals", totals=TRIGGERED, known=_ELSEWHERE, held_back="0", turn="NULL"
) + _VIEW.format(
    view="arrivals_with_turns",
    totals=TRIGGERED,
    known=_ELSEWHERE,
    held_back=HELD_BACK.format(sink="key", turn=_TURN),
    turn=_TURN,
)
"""`verdicts` is an object by sink: null, a turn, or the reason why the rule failed on the event.

`elsewhere` is a list of the indexed periods that may have the id; null for none.

The second view looks up waiting turns, which would slow down events without one.
"""

# No number is used twice: events that retention has removed were counted by the audience.
_LAST_SEQ = """
SELECT max(
    (SELECT coalesce(max(seq), 0) FROM events),
    coalesce((SELECT value FROM state WHERE name = 'audience'), 0)
)
"""
_ADD = "INSERT INTO arrivals VALUES {rows}"
_ADD_WITH_TURNS = "INSERT INTO arrivals_with_turns VALUES {rows}"
_ADDED = "SELECT json_group_array(seq) FROM events WHERE seq >= ?"
_RECENT_DIGEST = """
SELECT digest FROM events WHERE seq IN (SELECT value FROM json_each(?)) AND source = ? AND id = ?
"""
_KNOWN = id_periods.IN_PERIODS.format(periods="?", source="?", id="?")
_KNOWN_DIGEST = f"SELECT digest FROM events WHERE seq IN (SELECT i.seq {_KNOWN})"
_KEEP = """
INSERT INTO unreadable (source, digest, received_at, reason, headers, body)
VALUES {rows} ON CONFLICT DO NOTHING
"""
_PROBED = Verdict("", "takes", "")
_KEPT = attrgetter("source", "digest", "received_ms", "reason", "headers", "body")


class Acceptance:
    """Inserts events with their deliveries, and compares known ones with the stored event.

    It numbers the events itself, which saves a query per transaction.
    """

    def __init__(self, turns: OrderingKeys, ids: KnownIds, last: int) -> None:
        """`last` is the last number that an event has had."""
        self._turns = turns
        self._ids = ids
        self._recent = ids.recent
        self._last = last

    def __call__(self, db: sqlite3.Connection, arrivals: Sequence[Arrival]) -> list[Outcome]:
        first = self.next_numbers(len(arrivals))
        new: list[Numbered] = []
        again: list[Numbered] = []
        for numbered in enumerate(arrivals, first):
            seq, (event, _, _) = numbered
            if self._recent.candidates(event.source, event.id):
                again.append(numbered)
            else:
                self.remember(event, seq)
                new.append(numbered)
        if not again:
            return self._insert(db, new)
        with transaction(db):
            inserted = self._insert(db, new) if new else ()
            outcomes = dict(zip((seq for seq, _ in new), inserted, strict=True))
            for seq, arrival in again:
                outcomes[seq] = self._insert_one(db, seq, arrival)
        return [outcome for _, outcome in sorted(outcomes.items())]

    def _insert(self, db: sqlite3.Connection, numbered: Sequence[Numbered]) -> list[Outcome]:
        """Insert events that are not among the recent ones."""
        events = [self._row(seq, *arrival) for seq, arrival in numbered]
        before = db.total_changes
        of_sinks = [verdicts for _, (_, verdicts, _) in numbered]
        in_order = any(each.key is not None for verdicts in of_sinks for each in verdicts)
        bulk.write(db, _ADD_WITH_TURNS if in_order else _ADD, events)
        if db.total_changes - before == sum(2 + len(verdicts) for verdicts in of_sinks):
            return ["accepted"] * len(events)
        added = db.execute(_ADDED, (events[0][0],)).fetchone()[0]
        new: Container[int] = set(orjson.loads(added))
        return ["accepted" if row[0] in new else self._compare(db, row) for row in events]

    def _insert_one(self, db: sqlite3.Connection, seq: int, arrival: Arrival) -> Outcome:
        """Insert an event unless a recent one has its id."""
        event, _, _ = arrival
        known = self.recent_digest(db, event)
        if known is not None:
            return "duplicate" if known == digest(event.body) else "conflict"
        (outcome,) = self._insert(db, [(seq, arrival)])
        if outcome == "accepted":
            self.remember(event, seq)
        return outcome

    def recent_digest(self, db: sqlite3.Connection, event: Event) -> bytes | None:
        """Return the digest of the recent event with the same id."""
        seqs = self._recent.candidates(event.source, event.id)
        if not seqs:
            return None
        row = db.execute(_RECENT_DIGEST, (as_json(seqs), event.source, event.id)).fetchone()
        return None if row is None else row[0]

    def numbered(
        self, db: sqlite3.Connection, arrivals: Sequence[Arrival]
    ) -> list[tuple[Outcome, int]]:
        """Insert events; return with each outcome the number, unused unless it was accepted."""
        outcomes = self(db, arrivals)
        first = self._last - len(arrivals) + 1
        return [(outcome, seq) for seq, outcome in enumerate(outcomes, first)]

    def rehearse(self, db: sqlite3.Connection, sizes: Sequence[int]) -> list[None]:
        """Insert an event with a body of the largest size, and take it back.

        Its number goes to the next event, and its id, which no sender can have, is not remembered.
        """
        event = Event(
            source="",
            id=secrets.token_hex(16),
            kind="probe",
            created_at=None,
            received_ms=0,
            body=b"." * max(sizes),
        )
        arrival = event, [_PROBED], Total("", event.known_kind, "")
        db.execute("SAVEPOINT probe")
        self._insert(db, [(self._last + 1, arrival)])
        # After an error SQLite may have rolled back the whole transaction; its caller does it.
        db.execute("ROLLBACK TO probe")
        db.execute("RELEASE probe")
        return [None] * len(sizes)

    @property
    def last(self) -> int:
        """The last number that was given."""
        return self._last

    def next_numbers(self, count: int = 1) -> int:
        """Return the first of some numbers for new events, on the writer's thread.

        Those of a failed transaction are a gap, which is harmless.
        """
        first = self._last + 1
        self._last += count
        self._ids.enter(id_periods.of(self._last))
        return first

    def elsewhere(self, event: Event) -> str | None:
        """Return the indexed periods that may have an event's id, as JSON; None for no period."""
        periods = self._ids.elsewhere(event.source, event.id)
        return as_json(periods) if periods else None

    def remember(self, event: Event, seq: int) -> None:
        """Know the id of an event that was inserted."""
        self._recent.add(event.source, event.id, seq)

    def _row(self, seq: int, event: Event, verdicts: Sequence[Verdict], total: Total) -> Row:
        return (
            seq,
            event.source,
            event.id,
            event.kind,
            event.created_at,
            event.received_ms,
            digest(event.body),
            event.headers,
            event.body,
            orjson.dumps({each.sink: self._sink_value(each) for each in verdicts}).decode(),
            total.kind,
            total.milestone,
            self.elsewhere(event),
        )

    def _sink_value(self, verdict: Verdict) -> str | int | None:
        return verdict.why if verdict.outcome == "fails" else self.turn(verdict)

    def turn(self, verdict: Verdict) -> int | None:
        """Return the turn of a new delivery, if its sink is ordered and it is not dead."""
        if verdict.outcome == "fails" or verdict.key is None:
            return None
        return self._turns.live(verdict.sink, verdict.key)

    def _compare(self, db: sqlite3.Connection, row: Row) -> Outcome:
        _, source, event_id, _, _, _, received, *_, periods = row
        known = db.execute(_KNOWN_DIGEST, (periods, source, event_id)).fetchone()[0]
        return "duplicate" if known == received else "conflict"


def last_number(db: sqlite3.Connection) -> int:
    """Return the last number that an event has had."""
    number: int = db.execute(_LAST_SEQ).fetchone()[0]
    return number


def keep(db: sqlite3.Connection, requests: Sequence[Unreadable]) -> list[Outcome]:
    """Insert unreadable requests, once per body."""
    bulk.write(db, _KEEP, [_KEPT(request) for request in requests])
    return ["unreadable"] * len(requests)
