"""Operators' queries in SQL: functions of a connection, to be run on its thread."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from relay.core.delivery import Status
from relay.core.event import KINDS
from relay.core.routing import Route
from relay.store.dead_letters import DeadLetter, Reason
from relay.store.events import AttemptRecord, DeliveryRecord, EventRecord, History
from relay.store.globs import regular_expression
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.conditions import (
    WITH_PREFIX,
    fits,
    of_delivery,
    of_event,
    prefix_range,
)
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.missed import missed
from relay.store.postgres.text import storable
from relay.store.rows import ORIGINAL, is_damaged
from relay.store.selection import ALL, Condition, Selection, all_of

_EVENT = """
e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, octet_length(e.body), e.reconstructed
"""
_DELIVERIES = """
SELECT d.event, d.sink, d.status, d.attempts,
    CASE WHEN d.status = 'pending' AND NOT EXISTS (
        SELECT 1 FROM relay.deliveries first
        WHERE first.sink = d.sink AND first.turn = d.turn AND first.status = 'pending'
            AND first.event < d.event
    ) THEN d.due_at END,
    d.settled_at, d.reason, d.replay
FROM relay.deliveries d WHERE d.event = ANY(%b::bigint[]) ORDER BY d.event, d.sink
"""
DEAD = "status = 'dead'"
_ATTEMPTS = """
SELECT sink, started_at, duration_ms, result, status, reason, answer, replay
FROM relay.attempts WHERE event = %s ORDER BY started_at, number
"""
# Sink by sink, so that the index gives the newest of each.
_DEAD = """
SELECT letter.* FROM unnest(%b::text[]) AS s (name), LATERAL (
    SELECT e.seq, e.source, e.id, e.kind, e.received_at, d.sink, d.attempts, d.settled_at, d.reason,
        e.reconstructed
    FROM relay.deliveries d JOIN relay.events e ON e.seq = d.event
    WHERE d.sink = s.name AND d.status = 'dead' AND {fits}
    ORDER BY d.event DESC LIMIT %s
) AS letter ORDER BY letter.seq DESC, letter.sink
"""
_REASONS = """
SELECT d.sink, d.reason, count(*), min(d.settled_at), max(d.settled_at)
FROM relay.deliveries d {join}
WHERE d.status = 'dead' AND {fits}
GROUP BY d.sink, d.reason ORDER BY count(*) DESC, d.sink, d.reason COLLATE "C" NULLS FIRST
"""
# Seeks from one name to the next in the index, instead of reading all events.
_SOURCES = """
WITH RECURSIVE known (name) AS (
    (SELECT source FROM relay.events ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT min(source) FROM relay.events WHERE source > name) FROM known
    WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
"""
_SINKS = """
WITH RECURSIVE known (name) AS (
    (SELECT sink FROM relay.deliveries WHERE {belongs} ORDER BY sink LIMIT 1)
    UNION ALL
    SELECT (SELECT min(sink) FROM relay.deliveries WHERE {belongs} AND sink > name) FROM known
    WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
"""
_MATCHING_KIND = """
SELECT EXISTS (SELECT 1 FROM unnest(%b::text[]) AS known (kind) WHERE kind COLLATE "C" ~ %s)
    OR EXISTS (SELECT 1 FROM relay.events WHERE kind ~ %s)
"""
_NAMED = f"""
SELECT found.* FROM unnest(%b::text[]) AS s (name), LATERAL (
    SELECT {_EVENT} FROM relay.events e
    WHERE e.source = s.name AND e.{WITH_PREFIX} ORDER BY e.id LIMIT %s
) AS found ORDER BY found.source, found.id
"""


def events(
    db: Database,
    selection: Selection,
    routes: Sequence[Route],
    digests: PersonDigests,
    *,
    limit: int,
    conditions: Sequence[Condition] = (),
) -> list[EventRecord]:
    """Return the newest selected events, with their deliveries."""
    condition = fits(db, selection, digests, *conditions)
    if selection.outcome == "missed":
        condition = missed(db, selection, routes, condition, limit=limit)
    where, values = condition
    sql = f"SELECT {_EVENT} FROM relay.events e WHERE {where} ORDER BY e.seq DESC LIMIT %s"
    return _records(db, db.execute(sql, (*values, limit)).fetchall())


def count(
    db: Database,
    selection: Selection,
    routes: Sequence[Route],
    digests: PersonDigests,
    *,
    conditions: Sequence[Condition],
) -> int:
    """Count the selected events that meet further conditions."""
    condition = fits(db, selection, digests, *conditions)
    if selection.outcome == "missed":
        condition = missed(db, selection, routes, condition)
    where, values = condition
    rows = db.execute(f"SELECT count(*) FROM relay.events e WHERE {where}", values).fetchall()
    return int(rows[0][0])


def named(db: Database, beginning: str, *, source: str | None, limit: int) -> list[EventRecord]:
    """Return the events with this id, else those whose ids begin with it, by source."""
    of = sources(db) if source is None else [storable(source)]
    first, last = prefix_range(beginning)
    rows = db.execute(_NAMED, (of, first, last, limit)).fetchall()
    exact = [row for row in rows if row[2] == first]
    return _records(db, (exact or rows)[:limit])


def _records(db: Database, rows: Sequence[Row]) -> list[EventRecord]:
    deliveries = _deliveries(db, [row[0] for row in rows])
    return [EventRecord.of(row, deliveries.get(row[0], [])) for row in rows]


def _deliveries(db: Database, seqs: list[int]) -> Mapping[int, list[DeliveryRecord]]:
    records: defaultdict[int, list[DeliveryRecord]] = defaultdict(list)
    for event, sink, status, *rest in db.execute(_DELIVERIES, (seqs,)).fetchall():
        records[event].append(DeliveryRecord(sink, Status(status), *rest))
    return records


def history(db: Database, seq: int) -> History | None:
    """Return one event in full."""
    sql = f"SELECT {_EVENT}, e.headers, e.body, e.digest FROM relay.events e WHERE e.seq = %s"
    row = db.execute(sql, (seq,)).fetchone()
    if row is None:
        return None
    *event, headers, body, received = row
    attempts = [AttemptRecord(*each) for each in db.execute(_ATTEMPTS, (seq,)).fetchall()]
    (record,) = _records(db, [tuple(event)])
    return History(record, headers, body, is_damaged(body, received), attempts)


def dead_letters(
    db: Database, selection: Selection, digests: PersonDigests, *, limit: int
) -> list[DeadLetter]:
    """Return the newest dead letters, with all of the last event's: pages end between events."""
    where, values = _dead(db, selection, digests)
    rows = db.execute(_DEAD.format(fits=where), (_with_dead(db, selection), *values, limit))
    letters = [DeadLetter(*(*row, mark != ORIGINAL)) for *row, mark in rows.fetchall()]
    if len(letters) <= limit:
        return letters
    return [letter for letter in letters if letter.seq >= letters[limit - 1].seq]


def dead(
    db: Database, selection: Selection, digests: PersonDigests, *, up_to: int, limit: int
) -> list[tuple[int, str]]:
    """Return the keys of the newest selected dead letters, up to an event."""
    where, values = _dead(db, selection, digests, ("d.event <= %s", [up_to]))
    rows = db.execute(_DEAD.format(fits=where), (_with_dead(db, selection), *values, limit))
    return sorted(((row[0], row[5]) for row in rows.fetchall()), reverse=True)[:limit]


def reasons(db: Database, selection: Selection, digests: PersonDigests) -> list[Reason]:
    """Count the selected dead letters by sink and reason."""
    by_event = all_of(*of_event(db, selection, digests))
    where, values = all_of(*of_delivery(selection), by_event)
    join = "" if by_event == (ALL, []) else "JOIN relay.events e ON e.seq = d.event"
    rows = db.execute(_REASONS.format(fits=where, join=join), values)
    return [Reason(*row) for row in rows.fetchall()]


def _dead(
    db: Database, selection: Selection, digests: PersonDigests, *more: Condition
) -> Condition:
    return all_of(*of_delivery(selection), *of_event(db, selection, digests), *more)


def _with_dead(db: Database, selection: Selection) -> list[str]:
    """Return the selected sinks that have dead letters."""
    return [storable(selection.sink)] if selection.sink is not None else sinks_of(db, DEAD)


def last_attempt(db: Database) -> int:
    """Return the number of the newest attempt."""
    return int(db.execute("SELECT coalesce(max(number), 0) FROM relay.attempts").fetchall()[0][0])


def sources(db: Database) -> list[str]:
    """Return the sources of all stored events, sorted."""
    return [name for (name,) in db.execute(_SOURCES).fetchall()]


def sinks_of(db: Database, belongs: str) -> list[str]:
    """Return the sinks with such deliveries, by an index that has just these."""
    return [name for (name,) in db.execute(_SINKS.format(belongs=belongs)).fetchall()]


def has_kind(db: Database, glob: str) -> bool:
    """Whether the glob matches a known or a stored kind."""
    pattern = regular_expression(storable(glob))
    return bool(db.execute(_MATCHING_KIND, ([*KINDS], pattern, pattern)).fetchall()[0][0])
