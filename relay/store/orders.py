"""What operators do to a store, in SQL: writes that share transactions with all others."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from relay.delivery import MOVES, Status
from relay.store.desk import REOPENED, Replay, ReplayState, Selection
from relay.store.driver import sqlite3
from relay.store.search import fits, replay

Item = TypeVar("Item")
Result = TypeVar("Result")

Moved = Counter[tuple[str, Status]]
"""By how much the number of a sink's deliveries of a status has changed."""

_STATUS = """
SELECT d.status FROM events e LEFT JOIN deliveries d ON d.event = e.seq AND d.sink = ?
WHERE e.seq = ? AND e.body IS NOT NULL
"""
_ADD = """
INSERT INTO deliveries (event, sink, status, due_at, replay) VALUES (?, ?, 'pending', ?, ?)
"""
_REOPEN = """
UPDATE deliveries SET status = 'pending', replayed_from = status, attempts = 0, due_at = ?,
    first_attempt_at = NULL, replay = ?
WHERE event = ? AND sink = ?
"""
_ADVANCE = "UPDATE replays SET opened = opened + ?, cursor = ? WHERE id = ? AND state = 'running'"
_BEGIN = """
INSERT INTO replays (created_at, selection, state, total, until) VALUES (?, ?, 'running', ?, ?)
"""
_END = "UPDATE replays SET state = ?, ended_at = ? WHERE id = ? AND state = 'running'"
_OPENED = """
SELECT event, sink, replayed_from FROM deliveries WHERE status = 'pending' AND replay = ?
"""
_TAKE_AWAY = "DELETE FROM deliveries WHERE event = ? AND sink = ?"
_TAKE_BACK = """
UPDATE deliveries SET status = replayed_from, replayed_from = NULL WHERE event = ? AND sink = ?
"""
_DISCARD = """
UPDATE deliveries SET status = 'discarded', settled_at = ?
WHERE status = 'dead' AND {sink} AND event IN (SELECT e.seq FROM events e WHERE {fits})
RETURNING sink
"""
_PAUSE = "INSERT INTO paused_sinks VALUES (?, ?) ON CONFLICT DO NOTHING"
_RESUME = "DELETE FROM paused_sinks WHERE sink = ?"


class Opening(NamedTuple):
    """A step of a replay: deliveries by event and sink, and how far it has come."""

    replay: Replay
    deliveries: Sequence[tuple[int, str]]
    cursor: int
    now_ms: int


class Ending(NamedTuple):
    """The end of a replay; what is `leased` is on its way and cannot be taken back."""

    replay: Replay
    state: ReplayState
    leased: frozenset[tuple[int, str]]
    now_ms: int


def each(
    write: Callable[[sqlite3.Connection, Item], Result],
) -> Callable[[sqlite3.Connection, Sequence[Item]], list[Result]]:
    """A write of one item made one of many; operators do few things at once."""
    return lambda db, items: [write(db, item) for item in items]


def begin(db: sqlite3.Connection, wanted: tuple[Selection, int, int, int]) -> Replay:
    """Write down a replay: selection, total, until, and now."""
    selection, total, until, now_ms = wanted
    text = msgspec.json.encode(selection).decode()
    number = db.execute(_BEGIN, (now_ms, text, total, until)).lastrowid
    return _read(db, number or 0)


def open_deliveries(db: sqlite3.Connection, step: Opening) -> tuple[Replay, Moved]:
    """Make deliveries pending and move the replay on; nothing for one that has ended."""
    now = _read(db, step.replay.id)
    if now.state != "running":
        return now, Counter()
    moved: Moved = Counter()
    wanted = REOPENED[step.replay.selection.outcome]
    opened = 0
    for event, sink in step.deliveries:
        row = db.execute(_STATUS, (sink, event)).fetchone()
        if row is None:
            # Its body went after it had been chosen, so that there is nothing to send.
            continue
        status = None if row[0] is None else Status(row[0])
        if status not in wanted or (status is not None and Status.PENDING not in MOVES[status]):
            continue
        if status is None:
            db.execute(_ADD, (event, sink, step.now_ms, now.id))
        else:
            db.execute(_REOPEN, (step.now_ms, now.id, event, sink))
            moved[sink, status] -= 1
        moved[sink, Status.PENDING] += 1
        opened += 1
    db.execute(_ADVANCE, (opened, step.cursor, now.id))
    return _read(db, now.id), moved


def end(db: sqlite3.Connection, ending: Ending) -> tuple[Replay, Moved]:
    """Close a replay; a cancelled one's deliveries become what they were."""
    moved: Moved = Counter()
    number = ending.replay.id
    db.execute(_END, (ending.state, ending.now_ms, number))
    opened = db.execute(_OPENED, (number,)).fetchall() if ending.state == "cancelled" else []
    for event, sink, before in opened:
        if (event, sink) in ending.leased:
            continue
        db.execute(_TAKE_AWAY if before is None else _TAKE_BACK, (event, sink))
        moved[sink, Status.PENDING] -= 1
        if before is not None:
            moved[sink, Status(before)] += 1
    return _read(db, number), moved


def _read(db: sqlite3.Connection, number: int) -> Replay:
    found = replay(db, number)
    if found is None:
        raise ValueError(f"there is no replay {number}")
    return found


def discard(db: sqlite3.Connection, wanted: tuple[Selection, int]) -> Moved:
    """Give up the dead letters that fit."""
    selection, now_ms = wanted
    where, values = fits(selection)
    sink, named = ("1", ()) if selection.sink is None else ("sink = ?", (selection.sink,))
    moved: Moved = Counter()
    for (name,) in db.execute(_DISCARD.format(fits=where, sink=sink), (now_ms, *named, *values)):
        moved[name, Status.DEAD] -= 1
        moved[name, Status.DISCARDED] += 1
    return moved


def pause(db: sqlite3.Connection, wanted: tuple[str, int]) -> None:
    """Remember that a sink is paused, since when."""
    db.execute(_PAUSE, wanted)


def resume(db: sqlite3.Connection, sink: str) -> None:
    """Forget that a sink is paused."""
    db.execute(_RESUME, (sink,))
