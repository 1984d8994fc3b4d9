"""Operators' queries in SQL: functions of a connection, to be run on its thread."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import orjson
from msgspec.structs import replace

from relay.core.delivery import Status
from relay.core.event import KINDS
from relay.core.routing import Route
from relay.store.dead_letters import DeadLetter, Reason
from relay.store.events import AttemptRecord, DeliveryRecord, EventRecord, History
from relay.store.replays import Mark
from relay.store.rows import ORIGINAL, is_damaged
from relay.store.selection import ALL, Condition, Selection, all_of
from relay.store.sqlite import id_periods
from relay.store.sqlite.conditions import WITH_PREFIX, fits, of_delivery, of_event
from relay.store.sqlite.driver import snapshot, sqlite3
from relay.store.tiers import HELD_MS

_EVENT = (
    "e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, length(e.body), e.reconstructed"
)
_DELIVERIES = f"""
SELECT sink, status, attempts, iif(status = 'pending' AND due_at < {HELD_MS}, due_at, NULL),
    settled_at, reason, replay
FROM deliveries WHERE event = ? ORDER BY sink
"""
_ATTEMPTS = """
SELECT sink, started_at, duration_ms, result, status, reason, answer, replay
FROM attempts WHERE event = ? ORDER BY started_at, rowid
"""
_DEAD = """
SELECT e.seq, e.source, e.id, e.kind, e.received_at, d.sink, d.attempts, d.settled_at, d.reason,
    e.reconstructed
FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
ORDER BY d.event DESC LIMIT ?
"""
_DEAD_KEYS = """
SELECT d.event, d.sink FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
ORDER BY d.event DESC LIMIT ?
"""
_REASONS = """
SELECT d.sink, d.reason, count(*), min(d.settled_at), max(d.settled_at) FROM deliveries d {join}
WHERE d.status = 'dead' AND {fits}
GROUP BY d.sink, d.reason ORDER BY count(*) DESC, d.sink, d.reason
"""
_NEWEST = """
SELECT (SELECT coalesce(max(seq), 0) FROM events),
    (SELECT coalesce(max(rowid), 0) FROM attempts)
"""
_SOURCES = f"""
SELECT source FROM ({id_periods.SOURCES})
UNION SELECT source FROM events WHERE {id_periods.IS_OPEN} ORDER BY source
"""
_MATCHING_KIND = """
SELECT 1 FROM json_each(?) WHERE value GLOB ? UNION ALL SELECT 1 FROM events WHERE kind GLOB ?
LIMIT 1
"""
# In the order of the index, which ends the query at the limit.
_WITH_PREFIX = f"""
SELECT {_EVENT} FROM ids i CROSS JOIN events e ON e.seq = i.seq
WHERE i.period = ? AND i.source = ? AND i.{WITH_PREFIX} ORDER BY i.id LIMIT ?
"""
_OPEN_WITH_PREFIX = f"""
SELECT {_EVENT} FROM events e
WHERE e.{id_periods.IS_OPEN} AND (?1 IS NULL OR e.source = ?1)
    AND e.id BETWEEN ?2 AND ?2 || char(0x10ffff)
ORDER BY e.id != ?2, e.source, e.id LIMIT ?3
"""


def events(
    db: sqlite3.Connection,
    selection: Selection,
    routes: Sequence[Route],
    *,
    limit: int,
    conditions: Sequence[Condition] = (),
) -> list[EventRecord]:
    """Return the newest selected events, with their deliveries."""
    where, values = fits(db, selection, routes, *conditions)
    sql = f"SELECT {_EVENT} FROM events e WHERE {where} ORDER BY e.seq DESC LIMIT ?"
    return [_record(db, row) for row in db.execute(sql, (*values, limit)).fetchall()]


def count(
    db: sqlite3.Connection,
    selection: Selection,
    routes: Sequence[Route],
    conditions: Sequence[Condition],
) -> int:
    """Count the selected events that meet further conditions."""
    where, values = fits(db, selection, routes, *conditions)
    return int(db.execute(f"SELECT count(*) FROM events e WHERE {where}", values).fetchone()[0])


def named(
    db: sqlite3.Connection, beginning: str, *, source: str | None, limit: int
) -> list[EventRecord]:
    """Return the events with this id, else those whose ids begin with it, by source."""
    with snapshot(db):
        rows = db.execute(_OPEN_WITH_PREFIX, (source, beginning, limit)).fetchall()
        for period, name in id_periods.sources(db):
            if source in (None, name):
                rows += db.execute(_WITH_PREFIX, (period, name, beginning, beginning, limit))
        rows.sort(key=itemgetter(1, 2))
        exact = [row for row in rows if row[2] == beginning]
        return [_record(db, row) for row in (exact or rows)[:limit]]


def _record(db: sqlite3.Connection, row: Sequence[Any]) -> EventRecord:
    deliveries = [
        DeliveryRecord(sink, Status(status), *rest)
        for sink, status, *rest in db.execute(_DELIVERIES, row[:1])
    ]
    return EventRecord.of(row, deliveries)


def history(db: sqlite3.Connection, seq: int) -> History | None:
    """Return one event in full."""
    sql = f"SELECT {_EVENT}, e.headers, e.body, e.digest FROM events e WHERE e.seq = ?"
    row = db.execute(sql, (seq,)).fetchone()
    if row is None:
        return None
    *event, headers, body, received = row
    attempts = [AttemptRecord(*row) for row in db.execute(_ATTEMPTS, (seq,))]
    return History(_record(db, event), headers, body, is_damaged(body, received), attempts)


def dead_letters(
    db: sqlite3.Connection, selection: Selection, *, sinks: Iterable[str], limit: int
) -> list[DeadLetter]:
    """Return the newest dead letters, with all of the last event's: pages end between events.

    `sinks` are those with dead letters: the index of each has its newest at hand.
    """
    letters = [
        letter for sink in sinks for letter in _letters(db, replace(selection, sink=sink), limit)
    ]
    letters.sort(key=lambda letter: (-letter.seq, letter.sink))
    if len(letters) <= limit:
        return letters
    return [letter for letter in letters if letter.seq >= letters[limit - 1].seq]


def _letters(db: sqlite3.Connection, selection: Selection, limit: int) -> list[DeadLetter]:
    where, values = _dead(selection)
    rows = db.execute(_DEAD.format(fits=where), (*values, limit))
    return [DeadLetter(*(*row, mark != ORIGINAL)) for *row, mark in rows]


def dead(
    db: sqlite3.Connection, selection: Selection, *, sinks: Iterable[str], up_to: int, limit: int
) -> list[tuple[int, str]]:
    """Return the keys of the newest selected dead letters, up to an event."""
    keys: list[tuple[int, str]] = []
    for sink in sinks:
        where, values = _dead(replace(selection, sink=sink), ("d.event <= ?", [up_to]))
        keys += db.execute(_DEAD_KEYS.format(fits=where), (*values, limit))
    return sorted(keys, reverse=True)[:limit]


def reasons(db: sqlite3.Connection, selection: Selection) -> list[Reason]:
    """Count the selected dead letters by sink and reason."""
    where, values = _dead(selection)
    # Without the events, an index answers alone.
    by_event, _ = all_of(*of_event(selection))
    join = "" if by_event == ALL else "JOIN events e ON e.seq = d.event"
    sql = _REASONS.format(fits=where, join=join)
    return [Reason(*row) for row in db.execute(sql, values)]


def _dead(selection: Selection, *more: Condition) -> Condition:
    return all_of(*of_delivery(selection), *of_event(selection), *more)


def newest(db: sqlite3.Connection) -> Mark:
    """Return the mark of the newest event and attempt."""
    return Mark(*db.execute(_NEWEST).fetchone())


def sources(db: sqlite3.Connection) -> list[str]:
    """Return the sources of all stored events, sorted."""
    return [name for (name,) in db.execute(_SOURCES)]


def has_kind(db: sqlite3.Connection, glob: str) -> bool:
    """Whether the glob matches a known or a stored kind."""
    known = orjson.dumps(KINDS).decode()
    return db.execute(_MATCHING_KIND, (known, glob, glob)).fetchone() is not None
