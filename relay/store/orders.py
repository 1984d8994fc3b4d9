"""What operators do to a store, in SQL: writes that share transactions with all others."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import orjson

from relay.delivery import MOVES, Status
from relay.store.desk import REOPENED, Replay, ReplayState, Selection
from relay.store.driver import sqlite3
from relay.store.turns import line_up
from relay.store.walk import replay

Item = TypeVar("Item")
Result = TypeVar("Result")

Moved = Counter[tuple[str, Status]]
"""By how much the number of a sink's deliveries of a status has changed."""

_STANDING = """
SELECT d.status, json_group_array(e.seq), count(*)
FROM json_each(?) AS w CROSS JOIN events e ON e.seq = w.value
LEFT JOIN deliveries d ON d.event = e.seq AND d.sink = ?
WHERE e.body IS NOT NULL AND coalesce(d.replay, 0) < ?
GROUP BY d.status
"""
_ADD = """
INSERT INTO deliveries (event, sink, status, due_at, replay)
SELECT value, ?, 'pending', ?, ? FROM json_each(?)
"""
_REOPEN = """
UPDATE deliveries SET status = 'pending', replayed_from = status, attempts = 0, due_at = ?,
    first_attempt_at = NULL, replay = ?
WHERE sink = ? AND event IN (SELECT value FROM json_each(?))
"""
_ADVANCE = "UPDATE replays SET opened = opened + ?, cursor = ? WHERE id = ? AND state = 'running'"
_BEGIN = """
INSERT INTO replays (created_at, selection, state, total, until) VALUES (?, ?, 'running', ?, ?)
"""
_END = "UPDATE replays SET state = ?, ended_at = ? WHERE id = ? AND state = 'running'"
_OPENED = """
SELECT event, sink, replayed_from FROM deliveries WHERE status = 'pending' AND replay = ?
"""
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

    Left out is what this replay, or one that was begun after it, has opened before, and what has
    lost its body since it was chosen.
    """
    moved: Moved = Counter()
    number = step.replay.id
    wanted = REOPENED[step.replay.selection.outcome]
    standing = db.execute(_STANDING, (orjson.dumps(events).decode(), sink, number)).fetchall()
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


def end(db: sqlite3.Connection, ending: Ending) -> tuple[Replay, Moved]:
    """Close a replay; a cancelled one's deliveries become what they were."""
    moved: Moved = Counter()
    number = ending.replay.id
    ended = db.execute(_END, (ending.state, ending.now_ms, number)).rowcount
    taken_back = ended and ending.state == "cancelled"
    opened = db.execute(_OPENED, (number,)).fetchall() if taken_back else []
    waiting = [row for row in opened if row[:2] not in ending.leased]
    db.executemany(_TAKE_BACK, [row[:2] for row in waiting])
    db.executemany(_TAKE_AWAY, [row[:2] for row in waiting if row[2] is None])
    for _, sink, before in waiting:
        moved[sink, Status.PENDING] -= 1
        if before is not None:
            moved[sink, Status(before)] += 1
    return _read(db, number), moved


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
