"""What operators look up, in SQL: plain functions of a connection, run on its thread."""

from typing import Any

from relay.delivery import Status
from relay.store.desk import (
    AttemptRecord,
    DeadLetter,
    DeliveryRecord,
    EventRecord,
    History,
    Reason,
    Selection,
)
from relay.store.driver import Row, sqlite3
from relay.store.turns import HELD_MS

_EVENT = "e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, length(e.body)"
_DELIVERIES = """
SELECT sink, status, attempts, due_at, settled_at, reason, replay
FROM deliveries WHERE event = ? ORDER BY sink
"""
_ATTEMPTS = """
SELECT sink, started_at, duration_ms, result, status, reason, answer, replay
FROM attempts WHERE event = ? ORDER BY started_at, rowid
"""
_DEAD = """
SELECT e.seq, e.source, e.id, e.kind, e.received_at, d.sink, d.attempts, d.settled_at, d.reason
FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
ORDER BY d.event DESC, d.sink LIMIT ?
"""
_DEAD_KEYS = """
SELECT d.event, d.sink FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
ORDER BY d.event DESC LIMIT ?
"""
_REASONS = """
SELECT d.sink, d.reason, count(*) FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
GROUP BY d.sink, d.reason ORDER BY count(*) DESC, d.sink, d.reason
"""
# SQLite reads less deeply than orjson, and one such body must not fail a search.
_BODY = "iif(json_valid(CAST(e.body AS TEXT)), CAST(e.body AS TEXT), NULL)"
_VIDEO = (
    f"coalesce(json_extract({_BODY}, '$.data.video.id'),"
    f" iif(e.kind LIKE 'video.%', json_extract({_BODY}, '$.data.id'), NULL))"
)
_EMAIL = (
    f"(lower(json_extract({_BODY}, '$.data.email')) = lower(?)"
    f" OR lower(json_extract({_BODY}, '$.data.viewer.email')) = lower(?))"
)
_DONE = "('delivered', 'pending')"


Condition = tuple[str, list[Any]]
"""An SQL expression and its values."""


def fits(selection: Selection, *more: Condition) -> Condition:
    """The condition on `events e` that a selection means."""
    return all_of(*_of_event(selection), *_of_delivery(selection), *more)


def all_of(*conditions: Condition) -> Condition:
    """What holds where all hold that have values."""
    given = [each for each in conditions if None not in each[1]]
    return " AND ".join(sql for sql, _ in given) or "1", [v for _, each in given for v in each]


def _of_event(selection: Selection) -> list[Condition]:
    return [
        ("e.id = ?", [selection.id]),
        ("e.source = ?", [selection.source]),
        ("e.kind GLOB ?", [selection.kind]),
        ("e.received_at >= ?", [selection.since_ms]),
        ("e.received_at < ?", [selection.until_ms]),
        (f"e.body IS NOT NULL AND {_VIDEO} = ?", [selection.video]),
        (f"e.body IS NOT NULL AND {_EMAIL}", [selection.email, selection.email]),
    ]


def _of_delivery(selection: Selection) -> list[Condition]:
    sink, values = all_of(("d.sink = ?", [selection.sink]))
    known = f"SELECT 1 FROM deliveries d WHERE d.event = e.seq AND {sink}"
    if selection.outcome is None:
        return []
    if selection.outcome == "missed" and selection.sink is None:
        # Of any sink: one of those that the event was meant for has not got it.
        return [(f"EXISTS ({known} AND d.status NOT IN {_DONE})", values)]
    if selection.outcome == "missed":
        return [(f"NOT EXISTS ({known} AND d.status IN {_DONE})", values)]
    reason, why = all_of(("instr(d.reason, ?) > 0", [selection.reason]))
    sql = f"EXISTS ({known} AND d.status = ? AND {reason})"
    return [(sql, [*values, selection.outcome, *why])]


def _dead(selection: Selection, *more: Condition) -> Condition:
    return all_of(
        ("d.sink = ?", [selection.sink]),
        ("instr(d.reason, ?) > 0", [selection.reason]),
        *_of_event(selection),
        *more,
    )


def events(
    db: sqlite3.Connection, selection: Selection, *, before: int | None, limit: int
) -> list[EventRecord]:
    """The newest that fit, with their deliveries."""
    where, values = fits(selection, ("e.seq < ?", [before]))
    sql = f"SELECT {_EVENT} FROM events e WHERE {where} ORDER BY e.seq DESC LIMIT ?"
    return [_record(db, row) for row in db.execute(sql, (*values, limit)).fetchall()]


def _record(db: sqlite3.Connection, row: Row) -> EventRecord:
    return EventRecord(
        seq=row[0],
        source=row[1],
        id=row[2],
        kind=row[3],
        created_at=row[4],
        received_ms=row[5],
        bytes=row[6],
        deliveries=[_delivery(each) for each in db.execute(_DELIVERIES, row[:1])],
    )


def _delivery(row: Row) -> DeliveryRecord:
    sink, status, attempts, due_ms, settled_ms, reason, replay = row
    return DeliveryRecord(
        sink=sink,
        status=Status(status),
        attempts=attempts,
        due_ms=due_ms if status == Status.PENDING and due_ms < HELD_MS else None,
        settled_ms=settled_ms,
        reason=reason,
        replay=replay,
    )


def history(db: sqlite3.Connection, seq: int) -> History | None:
    """All that is known of one event."""
    sql = f"SELECT {_EVENT}, e.headers, e.body FROM events e WHERE e.seq = ?"
    row = db.execute(sql, (seq,)).fetchone()
    if row is None:
        return None
    names = AttemptRecord.__dataclass_fields__
    attempts = [
        AttemptRecord(**dict(zip(names, each, strict=True)))
        for each in db.execute(_ATTEMPTS, (seq,))
    ]
    return History(event=_record(db, row[:7]), headers=row[7], body=row[8], attempts=attempts)


def dead_letters(
    db: sqlite3.Connection, selection: Selection, *, before: int | None, limit: int
) -> list[DeadLetter]:
    """The newest."""
    where, values = _dead(selection, ("d.event < ?", [before]))
    names = DeadLetter.__dataclass_fields__
    rows = db.execute(_DEAD.format(fits=where), (*values, limit))
    return [DeadLetter(**dict(zip(names, row, strict=True))) for row in rows]


def dead(
    db: sqlite3.Connection, selection: Selection, *, up_to: int, limit: int
) -> list[tuple[int, str]]:
    """The newest dead letters that fit, by event and sink, of events not after this one."""
    where, values = _dead(selection, ("d.event <= ?", [up_to]))
    return db.execute(_DEAD_KEYS.format(fits=where), (*values, limit)).fetchall()


def reasons(db: sqlite3.Connection, selection: Selection) -> list[Reason]:
    """The dead letters by sink and reason."""
    where, values = _dead(selection)
    return [
        Reason(sink=sink, reason=reason, count=count)
        for sink, reason, count in db.execute(_REASONS.format(fits=where), values)
    ]


def last(db: sqlite3.Connection) -> int:
    """The newest event's number."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def paused(db: sqlite3.Connection) -> dict[str, int]:
    """The paused sinks, and since when."""
    return dict(db.execute("SELECT sink, since FROM paused_sinks").fetchall())
