"""Deliveries of replays in SQLite: opened, and taken back when a replay is cancelled."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import orjson

from relay.core.delivery import MOVES, Delivery, Status
from relay.store.ordering import OrderingKeys
from relay.store.replays import Opening, PlannedDelivery, Replay, advance, held
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.ordering import line_up

Moved = Counter[tuple[str, Status]]
"""Changes of the numbers of deliveries, by sink and status."""

TRIED_SINCE = """
EXISTS (
    SELECT 1 FROM attempts a WHERE a.event = d.event AND a.sink = d.sink AND a.rowid > {attempt}
)
"""
"""Whether one of `deliveries d` was tried after an attempt."""

_STANDING = f"""
SELECT d.status, json_group_array(e.seq), count(*)
FROM json_each(?) AS w CROSS JOIN events e ON e.seq = w.value
LEFT JOIN deliveries d ON d.event = e.seq AND d.sink = ?
WHERE e.body IS NOT NULL AND d.replay IS NOT ?
    AND NOT {TRIED_SINCE.format(attempt="?")}
GROUP BY d.status
"""
_ADD = """
INSERT INTO deliveries (event, sink, status, due_at, replay)
SELECT value, ?, 'pending', ?, ? FROM json_each(?)
"""
_REOPEN = """
UPDATE deliveries SET status = 'pending', replayed_from = status, attempts = 0, due_at = ?,
    first_attempt_at = NULL, tries = 0, tried_at = NULL, replay = ?
WHERE sink = ? AND event IN (SELECT value FROM json_each(?))
"""
_OPENED = """
SELECT event, sink, replayed_from FROM deliveries WHERE status = 'pending' AND replay = ?
"""
_CANCELLED = """
SELECT DISTINCT d.replay FROM deliveries d JOIN replays r ON r.id = d.replay
WHERE d.status = 'pending' AND d.replay IS NOT NULL AND r.state = 'cancelled'
"""
_CANCELLED_ONE = """
SELECT d.replay, d.event, d.sink, d.replayed_from
FROM deliveries d JOIN replays r ON r.id = d.replay
WHERE d.event = ? AND d.sink = ? AND d.status = 'pending' AND r.state = 'cancelled'
"""
_LESS_OPENED = "UPDATE replays SET opened = opened - ? WHERE id = ?"
# Also before a deletion, so that the trigger passes its turn on.
_RESTORE = """
UPDATE deliveries SET status = coalesce(replayed_from, 'discarded'), replayed_from = NULL
WHERE event = ? AND sink = ?
"""
_TAKE_AWAY = "DELETE FROM deliveries WHERE event = ? AND sink = ?"


def open_deliveries(
    db: sqlite3.Connection, step: Opening, keys: OrderingKeys
) -> tuple[Replay, Moved]:
    """Make deliveries pending and advance the replay, unless it has ended."""
    current = held(db, step.replay)
    moved: Moved = Counter()
    if current.state != "running":
        return current, moved
    of_sink: defaultdict[str, list[PlannedDelivery]] = defaultdict(list)
    for planned in step.deliveries:
        of_sink[planned.sink].append(planned)
    for sink, deliveries in of_sink.items():
        moved.update(_open(db, current, sink, [each.seq for each in deliveries], step.now_ms))
        turns = [(seq, keys.replayed(sink, key)) for seq, _, key in deliveries if key is not None]
        line_up(db, sink, current.id, turns)
    opened = sum(count for (_, status), count in moved.items() if status is Status.PENDING)
    return advance(db, current.id, opened=opened, cursor=step.cursor), moved


def _open(
    db: sqlite3.Connection, replay: Replay, sink: str, events: Sequence[int], now_ms: int
) -> Moved:
    """Open a sink's deliveries with a few statements.

    Skips deliveries that this replay has opened before or that were tried since it started, and
    events that have lost their body.
    """
    moved: Moved = Counter()
    reopened = replay.selection.reopened
    values = (orjson.dumps(events).decode(), sink, replay.id, replay.until.attempt)
    for known, seqs, count in db.execute(_STANDING, values).fetchall():
        status = None if known is None else Status(known)
        if status not in reopened or (status is not None and Status.PENDING not in MOVES[status]):
            continue
        if status is None:
            db.execute(_ADD, (sink, now_ms, replay.id, seqs))
        else:
            db.execute(_REOPEN, (now_ms, replay.id, sink, seqs))
            moved[sink, status] -= count
        moved[sink, Status.PENDING] += count
    return moved


def withdraw(
    db: sqlite3.Connection, number: int, in_flight: Collection[tuple[int, str]]
) -> tuple[Replay, Moved]:
    """Restore the deliveries of a cancelled replay to their status before it.

    Those in flight, by event and sink, may end.
    """
    opened = db.execute(_OPENED, (number,)).fetchall()
    moved = restore(db, number, [row for row in opened if row[:2] not in in_flight])
    return held(db, number), moved


def withdraw_all(db: sqlite3.Connection) -> None:
    """Restore the deliveries of cancelled replays that were in flight when the relay ended."""
    for (number,) in db.execute(_CANCELLED).fetchall():
        restore(db, number, db.execute(_OPENED, (number,)).fetchall())


def withdraw_one(db: sqlite3.Connection, delivery: Delivery) -> Status:
    """Restore a pending delivery if its replay is cancelled; return its status."""
    opened = db.execute(_CANCELLED_ONE, (delivery.seq, delivery.sink)).fetchone()
    if opened is None:
        return Status.PENDING
    number, *row = opened
    restore(db, number, [tuple(row)])
    return Status(row[2] or Status.DISCARDED)


def restore(
    db: sqlite3.Connection, number: int, opened: Sequence[tuple[int, str, str | None]]
) -> Moved:
    """Restore deliveries of a replay, by event, sink and status before it."""
    moved: Moved = Counter()
    db.executemany(_RESTORE, [row[:2] for row in opened])
    db.executemany(_TAKE_AWAY, [row[:2] for row in opened if row[2] is None])
    db.execute(_LESS_OPENED, (len(opened), number))
    for _, sink, before in opened:
        moved[sink, Status.PENDING] -= 1
        if before is not None:
            moved[sink, Status(before)] += 1
    return moved
