"""Operators' changes in SQL: writes that share transactions with all others."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import orjson

from relay.core.delivery import MOVES, Delivery, Status
from relay.store.ordering import OrderingKeys
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayState
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.ordering import line_up
from relay.store.sqlite.replays import TRIED_SINCE, replay

Moved = Counter[tuple[str, Status]]
"""Changes of the numbers of deliveries, by sink and status."""

_STANDING = f"""
SELECT d.status, json_group_array(e.seq), count(*)
FROM json_each(?) AS w CROSS JOIN events e ON e.seq = w.value
LEFT JOIN deliveries d ON d.event = e.seq AND d.sink = ?
WHERE e.body IS NOT NULL AND d.replay IS NOT ?
    AND NOT {TRIED_SINCE.format(event="d.event", sink="d.sink")}
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
# A reload may add a sink or widen a route, so that more are opened than were counted.
_ADVANCE = """
UPDATE replays SET opened = opened + ?1, total = max(total, opened + ?1), cursor = ?2
WHERE id = ?3 AND state = 'running'
"""
_BEGIN = """
INSERT INTO replays (created_at, selection, state, total, until, attempt)
VALUES (?, ?, 'running', ?, ?, ?)
"""
_END = "UPDATE replays SET state = ?, ended_at = ? WHERE id = ? AND state = 'running'"
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
_DISCARD = """
UPDATE deliveries SET status = 'discarded', settled_at = ?
WHERE event = ? AND sink = ? AND status = 'dead'
"""
PAUSE = "INSERT INTO paused_sinks VALUES (?, ?) ON CONFLICT DO NOTHING"
RESUME = "DELETE FROM paused_sinks WHERE sink = ?"


class Opening(NamedTuple):
    """A step of a replay."""

    replay: int
    deliveries: Sequence[PlannedDelivery]
    cursor: int
    now_ms: int


def begin(
    db: sqlite3.Connection, selection: Selection, *, total: int, until: Mark, now_ms: int
) -> Replay:
    """Store a new replay."""
    text = msgspec.json.encode(selection).decode()
    number = db.execute(_BEGIN, (now_ms, text, total, *until)).lastrowid
    return _read(db, number or 0)


def open_deliveries(
    db: sqlite3.Connection, step: Opening, keys: OrderingKeys
) -> tuple[Replay, Moved]:
    """Make deliveries pending and advance the replay, unless it has ended."""
    current = _read(db, step.replay)
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
    db.execute(_ADVANCE, (opened, step.cursor, current.id))
    return _read(db, current.id), moved


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


def end(db: sqlite3.Connection, number: int, state: ReplayState, *, now_ms: int) -> Replay:
    """End a replay; an ended one stays as it is."""
    db.execute(_END, (state, now_ms, number))
    return _read(db, number)


def withdraw(
    db: sqlite3.Connection, number: int, in_flight: Collection[tuple[int, str]]
) -> tuple[Replay, Moved]:
    """Restore the deliveries of a cancelled replay to their status before it.

    Those in flight, by event and sink, may end.
    """
    opened = db.execute(_OPENED, (number,)).fetchall()
    moved = restore(db, number, [row for row in opened if row[:2] not in in_flight])
    return _read(db, number), moved


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


def _read(db: sqlite3.Connection, number: int) -> Replay:
    stored = replay(db, number)
    if stored is None:
        raise ValueError(f"there is no replay {number}")
    return stored


def discard(db: sqlite3.Connection, letters: Sequence[tuple[int, str]], now_ms: int) -> Moved:
    """Discard dead letters, by event and sink."""
    moved: Moved = Counter()
    for event, sink in letters:
        count = db.execute(_DISCARD, (now_ms, event, sink)).rowcount
        moved[sink, Status.DEAD] -= count
        moved[sink, Status.DISCARDED] += count
    return moved
