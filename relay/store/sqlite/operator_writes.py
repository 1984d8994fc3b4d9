"""What operators do to a store, in SQL: writes that share transactions with all others."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import orjson

from relay.core.delivery import MOVES, Delivery, Status
from relay.store.replays import Mark, Replay, ReplayState
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.group_commit import transaction
from relay.store.sqlite.ordering import line_up
from relay.store.sqlite.replays import TRIED_SINCE, replay

Item = TypeVar("Item")
Result = TypeVar("Result")

Moved = Counter[tuple[str, Status]]
"""By how much the number of a sink's deliveries of a status has changed."""

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
# A reload may add a sink or widen a route, so that more is opened than was counted.
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
# Also what is to go altogether, so that it does not leave with its turn.
_TAKE_BACK = """
UPDATE deliveries SET status = coalesce(replayed_from, 'discarded'), replayed_from = NULL
WHERE event = ? AND sink = ?
"""
_TAKE_AWAY = "DELETE FROM deliveries WHERE event = ? AND sink = ?"
_DISCARD = """
UPDATE deliveries SET status = 'discarded', settled_at = ?
WHERE event = ? AND sink = ? AND status = 'dead'
"""
_PAUSE = "INSERT INTO paused_sinks VALUES (?, ?) ON CONFLICT DO NOTHING"
_RESUME = "DELETE FROM paused_sinks WHERE sink = ?"


class Opening(NamedTuple):
    """A step of a replay: deliveries by event and sink, and how far it has come."""

    replay: Replay
    deliveries: Sequence[tuple[int, str]]
    turns: Mapping[tuple[int, str], int]
    """Of those deliveries that keep an order."""
    cursor: int
    now_ms: int


class Withdrawal(NamedTuple):
    """A replay that is cancelled, and its deliveries that are being sent: these may end."""

    replay: int
    sent: frozenset[tuple[int, str]]


def each(
    write: Callable[[sqlite3.Connection, Item], Result],
) -> Callable[[sqlite3.Connection, Sequence[Item]], list[Result]]:
    """A write of one item made one of many; operators do few things at once."""
    return lambda db, items: [write(db, item) for item in items]


def begin(db: sqlite3.Connection, wanted: tuple[Selection, int, Mark, int]) -> Replay:
    """Write down a replay: selection, total, until, and now."""
    selection, total, until, now_ms = wanted
    text = msgspec.json.encode(selection).decode()
    number = db.execute(_BEGIN, (now_ms, text, total, *until)).lastrowid
    return _read(db, number or 0)


def open_deliveries(db: sqlite3.Connection, step: Opening) -> tuple[Replay, Moved]:
    """Make deliveries pending and move the replay on; nothing for one that has ended."""
    now = _read(db, step.replay.id)
    moved: Moved = Counter()
    if now.state != "running":
        return now, moved
    of_sink: defaultdict[str, list[int]] = defaultdict(list)
    for event, sink in step.deliveries:
        of_sink[sink].append(event)
    for sink, events in of_sink.items():
        moved.update(_open(db, step, sink, events))
        turns = [(seq, step.turns[seq, sink]) for seq in events if (seq, sink) in step.turns]
        line_up(db, sink, step.replay.id, turns)
    opened = sum(count for (_, status), count in moved.items() if status is Status.PENDING)
    db.execute(_ADVANCE, (opened, step.cursor, now.id))
    return _read(db, now.id), moved


def _open(db: sqlite3.Connection, step: Opening, sink: str, events: Sequence[int]) -> Moved:
    """Open a sink's deliveries, some statements for all of them.

    Left out is what this replay has opened before, what has been tried since it began, and what
    has lost its body since it was chosen.
    """
    moved: Moved = Counter()
    number, until = step.replay.id, step.replay.until
    wanted = step.replay.selection.reopened
    asked = (orjson.dumps(events).decode(), sink, number, until.attempt)
    standing = db.execute(_STANDING, asked).fetchall()
    for known, seqs, count in standing:
        status = None if known is None else Status(known)
        if status not in wanted or (status is not None and Status.PENDING not in MOVES[status]):
            continue
        if status is None:
            db.execute(_ADD, (sink, step.now_ms, number, seqs))
        else:
            db.execute(_REOPEN, (step.now_ms, number, sink, seqs))
            moved[sink, status] -= count
        moved[sink, Status.PENDING] += count
    return moved


def end(db: sqlite3.Connection, wanted: tuple[int, ReplayState, int]) -> Replay:
    """Close a replay: its number, its state, and now; one that has ended stays as it is."""
    number, state, now_ms = wanted
    db.execute(_END, (state, now_ms, number))
    return _read(db, number)


def withdraw(db: sqlite3.Connection, withdrawal: Withdrawal) -> tuple[Replay, Moved]:
    """Take back the pending deliveries of a cancelled replay: they become what they were."""
    number = withdrawal.replay
    opened = db.execute(_OPENED, (number,)).fetchall()
    waiting = [row for row in opened if row[:2] not in withdrawal.sent]
    moved = take_back(db, number, waiting)
    return _read(db, number), moved


def withdraw_all(db: sqlite3.Connection) -> None:
    """Take back what replays that were cancelled had on its way when the relay ended."""
    for (number,) in db.execute(_CANCELLED).fetchall():
        take_back(db, number, db.execute(_OPENED, (number,)).fetchall())


def withdraw_one(db: sqlite3.Connection, delivery: Delivery) -> Status:
    """Take a pending delivery back if its replay is cancelled; return the status that it has."""
    opened = db.execute(_CANCELLED_ONE, (delivery.seq, delivery.sink)).fetchone()
    if opened is None:
        return Status.PENDING
    number, *row = opened
    with transaction(db):
        take_back(db, number, [tuple(row)])
    return Status(row[2] or Status.DISCARDED)


def take_back(
    db: sqlite3.Connection, number: int, opened: Sequence[tuple[int, str, str | None]]
) -> Moved:
    """Make deliveries of a replay what they were: by event, sink and status before it."""
    moved: Moved = Counter()
    db.executemany(_TAKE_BACK, [row[:2] for row in opened])
    db.executemany(_TAKE_AWAY, [row[:2] for row in opened if row[2] is None])
    db.execute(_LESS_OPENED, (len(opened), number))
    for _, sink, before in opened:
        moved[sink, Status.PENDING] -= 1
        if before is not None:
            moved[sink, Status(before)] += 1
    return moved


def _read(db: sqlite3.Connection, number: int) -> Replay:
    found = replay(db, number)
    if found is None:
        raise ValueError(f"there is no replay {number}")
    return found


def discard(db: sqlite3.Connection, wanted: tuple[Sequence[tuple[int, str]], int]) -> Moved:
    """Give up some dead letters, by event and sink."""
    letters, now_ms = wanted
    moved: Moved = Counter()
    for event, sink in letters:
        count = db.execute(_DISCARD, (now_ms, event, sink)).rowcount
        moved[sink, Status.DEAD] -= count
        moved[sink, Status.DISCARDED] += count
    return moved


def pause(db: sqlite3.Connection, wanted: tuple[str, int]) -> None:
    """Remember that a sink is paused, since when."""
    db.execute(_PAUSE, wanted)


def resume(db: sqlite3.Connection, sink: str) -> None:
    """Forget that a sink is paused."""
    db.execute(_RESUME, (sink,))
