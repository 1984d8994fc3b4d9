"""Queries of replays in SQL: their events with bodies, and their progress."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import orjson

from relay.core.delivery import Status
from relay.core.routing import Route
from relay.store.conditions import all_of
from relay.store.replays import DeliveryState, Mark, Replay, ReplayCandidate
from relay.store.rows import EVENT, event_of, within_bytes
from relay.store.selection import Selection
from relay.store.sqlite.conditions import fits, of_delivery
from relay.store.sqlite.driver import Row, sqlite3

_CHOSEN = f"""
SELECT e.seq, {EVENT}
FROM events e WHERE {{fits}} AND e.seq <= ? AND e.body IS NOT NULL ORDER BY e.seq LIMIT ?
"""
_BODY = 6
"""Column of `_CHOSEN`."""
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""
TRIED_SINCE = """
EXISTS (SELECT 1 FROM attempts a WHERE a.event = {event} AND a.sink = {sink} AND a.rowid > ?)
"""
"""Whether a delivery was tried after an attempt."""

# One row of JSON, because Python's lock changes hands at each row.
_STANDING = f"""
SELECT json_group_array(json_array(
    d.event, d.sink,
    iif({TRIED_SINCE.format(event="d.event", sink="d.sink")}, 'pending', d.status), d.reason
)) FROM deliveries d
WHERE d.event IN (SELECT value FROM json_each(?)) AND {{condition}}
"""
_REPLAY = "id, created_at, selection, state, total, opened, cursor, until, attempt, ended_at"


def choose(
    db: sqlite3.Connection,
    selection: Selection,
    routes: Sequence[Route],
    *,
    after: int,
    until: Mark,
    limit: int,
) -> list[ReplayCandidate]:
    """Return the oldest selected events that still have their body."""
    where, values = fits(db, selection, routes, ("e.seq > ?", [after]))
    selected = db.execute(_CHOSEN.format(fits=where), (*values, until.event, limit))
    rows = list(within_bytes(selected, _STEP_BYTES, lambda row: len(row[_BODY])))
    standing = _standing(db, selection, [row[0] for row in rows], until.attempt)
    return [ReplayCandidate(seq, event_of(event), standing[seq]) for seq, *event in rows]


def _standing(
    db: sqlite3.Connection, selection: Selection, seqs: Sequence[int], attempt: int
) -> Mapping[int, dict[str, DeliveryState]]:
    """Return the selected deliveries, by event and sink."""
    condition, values = all_of(*of_delivery(selection))
    sql = _STANDING.format(condition=condition)
    row = db.execute(sql, (attempt, orjson.dumps(seqs).decode(), *values)).fetchone()
    standing: defaultdict[int, dict[str, DeliveryState]] = defaultdict(dict)
    for event, sink, status, reason in orjson.loads(row[0]):
        standing[event][sink] = DeliveryState(Status(status), reason)
    return standing


def replays(db: sqlite3.Connection, *, before: int | None, limit: int) -> list[Replay]:
    """Return the newest replays."""
    where, values = all_of(("id < ?", [before]))
    sql = f"SELECT {_REPLAY} FROM replays WHERE {where} ORDER BY id DESC LIMIT ?"
    return [_replay(row) for row in db.execute(sql, (*values, limit))]


def running(db: sqlite3.Connection) -> list[Replay]:
    """Return the running replays, oldest first."""
    sql = f"SELECT {_REPLAY} FROM replays WHERE state = 'running' ORDER BY id"
    return [_replay(row) for row in db.execute(sql)]


def replay(db: sqlite3.Connection, number: int) -> Replay | None:
    """Return one replay."""
    row = db.execute(f"SELECT {_REPLAY} FROM replays WHERE id = ?", (number,)).fetchone()
    return None if row is None else _replay(row)


def _replay(row: Row) -> Replay:
    number, created_ms, text, state, total, opened, cursor, event, attempt, ended_ms = row
    selection, until = msgspec.json.decode(text, type=Selection), Mark(event, attempt)
    return Replay(number, created_ms, selection, state, total, opened, cursor, until, ended_ms)


def under_way(db: sqlite3.Connection, number: int) -> dict[str, int]:
    """Count the pending deliveries of a replay by sink."""
    sql = """
SELECT sink, count(*) FROM deliveries WHERE status = 'pending' AND replay = ? GROUP BY sink
"""
    return dict(db.execute(sql, (number,)).fetchall())
