"""What operators look up, in SQL: plain functions of a connection, run on its thread."""

from typing import Any

import msgspec

from relay.delivery import Status
from relay.event import Event
from relay.store.desk import (
    AttemptRecord,
    Chosen,
    DeadLetter,
    DeliveryRecord,
    EventRecord,
    History,
    Reason,
    Replay,
    Selection,
    UnreadableRecord,
)
from relay.store.driver import Row, sqlite3

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
_REASONS = """
SELECT d.sink, d.reason, count(*) FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.status = 'dead' AND {fits}
GROUP BY d.sink, d.reason ORDER BY count(*) DESC, d.sink, d.reason
"""
_STANDING = "SELECT sink, status FROM deliveries WHERE event = ?"
_UNREADABLE = """
SELECT source, received_at, reason, length(body) FROM unreadable
ORDER BY received_at DESC LIMIT ?
"""
_REPLAY = "id, created_at, selection, state, total, opened, cursor, until, ended_at"
_BODY = "CAST(e.body AS TEXT)"
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
    return _all(*_of_event(selection), *_of_delivery(selection), *more)


def _all(*conditions: Condition) -> Condition:
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
    sink, values = _all(("d.sink = ?", [selection.sink]))
    known = f"SELECT 1 FROM deliveries d WHERE d.event = e.seq AND {sink}"
    if selection.outcome is None:
        return []
    if selection.outcome == "missed" and selection.sink is None:
        # Of any sink: one of those that the event was meant for has not got it.
        return [(f"EXISTS ({known} AND d.status NOT IN {_DONE})", values)]
    if selection.outcome == "missed":
        return [(f"NOT EXISTS ({known} AND d.status IN {_DONE})", values)]
    reason, why = _all(("instr(d.reason, ?) > 0", [selection.reason]))
    sql = f"EXISTS ({known} AND d.status = ? AND {reason})"
    return [(sql, [*values, selection.outcome, *why])]


def _dead(selection: Selection, *more: Condition) -> Condition:
    return _all(
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
        due_ms=due_ms if status == Status.PENDING else None,
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


def reasons(db: sqlite3.Connection, selection: Selection) -> list[Reason]:
    """The dead letters by sink and reason."""
    where, values = _dead(selection)
    return [
        Reason(sink=sink, reason=reason, count=count)
        for sink, reason, count in db.execute(_REASONS.format(fits=where), values)
    ]


def unreadable(db: sqlite3.Connection, *, limit: int) -> list[UnreadableRecord]:
    """The newest."""
    names = UnreadableRecord.__dataclass_fields__
    return [
        UnreadableRecord(**dict(zip(names, row, strict=True)))
        for row in db.execute(_UNREADABLE, (limit,))
    ]


def choose(
    db: sqlite3.Connection, selection: Selection, *, after: int, until: int, limit: int
) -> list[Chosen]:
    """The oldest that fit and still have their body."""
    where, values = fits(selection, ("e.seq > ?", [after]))
    sql = f"""
SELECT e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, e.body, e.headers
FROM events e WHERE {where} AND e.seq <= ? AND e.body IS NOT NULL ORDER BY e.seq LIMIT ?
"""
    return [
        Chosen(
            row[0],
            Event(
                source=row[1],
                id=row[2],
                kind=row[3],
                created_at=row[4],
                received_ms=row[5],
                body=row[6],
                headers=row[7],
            ),
            {sink: Status(status) for sink, status in db.execute(_STANDING, row[:1])},
        )
        for row in db.execute(sql, (*values, until, limit)).fetchall()
    ]


def last(db: sqlite3.Connection) -> int:
    """The newest event's number."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def replays(db: sqlite3.Connection, *, limit: int) -> list[Replay]:
    """The newest."""
    sql = f"SELECT {_REPLAY} FROM replays ORDER BY id DESC LIMIT ?"
    return [_replay(row) for row in db.execute(sql, (limit,))]


def replay(db: sqlite3.Connection, number: int) -> Replay | None:
    """One of them."""
    row = db.execute(f"SELECT {_REPLAY} FROM replays WHERE id = ?", (number,)).fetchone()
    return None if row is None else _replay(row)


def _replay(row: Row) -> Replay:
    return Replay(
        id=row[0],
        created_ms=row[1],
        selection=msgspec.json.decode(row[2], type=Selection),
        state=row[3],
        total=row[4],
        opened=row[5],
        cursor=row[6],
        until=row[7],
        ended_ms=row[8],
    )


def under_way(db: sqlite3.Connection, number: int) -> int:
    """How many pending deliveries a replay has opened."""
    sql = "SELECT count(*) FROM deliveries WHERE status = 'pending' AND replay = ?"
    return int(db.execute(sql, (number,)).fetchone()[0])


def paused(db: sqlite3.Connection) -> dict[str, int]:
    """The paused sinks, and since when."""
    return dict(db.execute("SELECT sink, since FROM paused_sinks").fetchall())
