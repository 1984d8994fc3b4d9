"""Queries of replays in SQL: their events with bodies, and their progress."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from relay.core.delivery import Status
from relay.core.routing import Route
from relay.store.conditions import all_of
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.conditions import fits, of_delivery
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.missed import missed
from relay.store.replays import DeliveryState, Mark, Replay, ReplayCandidate
from relay.store.rows import EVENT, event_of, within_bytes
from relay.store.selection import Selection

# Their bodies are read afterwards: only of those that the step has room for.
_CHOSEN = """
SELECT e.seq, octet_length(e.body) FROM relay.events e
WHERE {fits} AND e.body IS NOT NULL ORDER BY e.seq LIMIT %s
"""
_EVENTS = f"""
SELECT e.seq, {EVENT} FROM relay.events e
WHERE e.seq = ANY(%b::bigint[]) AND e.body IS NOT NULL ORDER BY e.seq
"""
_STEP_BYTES = 1 << 20
"""Total size of bodies, in bytes, at which a step ends."""

TRIED_SINCE = """
EXISTS (
    SELECT 1 FROM (
        SELECT number FROM relay.attempts WHERE event = d.event AND sink = d.sink OFFSET 0
    ) AS a WHERE a.number > {attempt}
)
"""
"""Whether one of `deliveries d` was tried after an attempt.

Never by a range of numbers, in which all attempts since are."""

_STANDING = f"""
SELECT d.event, d.sink,
    CASE WHEN {TRIED_SINCE.format(attempt="%s")} THEN 'pending' ELSE d.status END, d.reason
FROM relay.deliveries d WHERE d.event = ANY(%b::bigint[]) AND {{condition}}
"""
_REPLAY = "id, created_at, selection, state, total, opened, cursor, until, attempt, ended_at"
_CANCELLED = """
SELECT id FROM relay.replays r WHERE state = 'cancelled' AND EXISTS (
    SELECT 1 FROM relay.deliveries d WHERE d.replay = r.id AND d.status = 'pending'
)
"""
_UNDER_WAY = """
SELECT sink, count(*) FROM relay.deliveries
WHERE status = 'pending' AND replay = %s GROUP BY sink
"""


def choose(
    db: Database,
    selection: Selection,
    routes: Sequence[Route],
    digests: PersonDigests,
    *,
    after: int,
    until: Mark,
    limit: int,
) -> list[ReplayCandidate]:
    """Return the oldest selected events that still have their body."""
    span = "e.seq > %s AND e.seq <= %s", [after, until.event]
    condition = fits(db, selection, digests, span)
    if selection.outcome == "missed":
        condition = missed(db, selection, routes, condition, order="ASC", limit=limit)
    where, values = condition
    rows = db.execute(_CHOSEN.format(fits=where), (*values, limit)).fetchall()
    seqs = [row[0] for row in within_bytes(rows, _STEP_BYTES, lambda row: int(row[1]))]
    events = {seq: event_of(event) for seq, *event in db.execute(_EVENTS, (seqs,)).fetchall()}
    standing = _standing(db, selection, seqs, until.attempt)
    return [ReplayCandidate(seq, event, standing[seq]) for seq, event in events.items()]


def _standing(
    db: Database, selection: Selection, seqs: Sequence[int], attempt: int
) -> Mapping[int, dict[str, DeliveryState]]:
    """Return the selected deliveries, by event and sink."""
    condition, values = all_of(*of_delivery(selection))
    rows = db.execute(_STANDING.format(condition=condition), (attempt, seqs, *values)).fetchall()
    standing: defaultdict[int, dict[str, DeliveryState]] = defaultdict(dict)
    for event, sink, status, reason in rows:
        standing[event][sink] = DeliveryState(Status(status), reason)
    return standing


def replays(db: Database, *, before: int | None, limit: int) -> list[Replay]:
    """Return the newest replays."""
    where, values = all_of(("id < %s", [before]))
    sql = f"SELECT {_REPLAY} FROM relay.replays WHERE {where} ORDER BY id DESC LIMIT %s"
    return [_replay(row) for row in db.execute(sql, (*values, limit)).fetchall()]


def running(db: Database) -> list[Replay]:
    """Return the running replays, oldest first."""
    sql = f"SELECT {_REPLAY} FROM relay.replays WHERE state = 'running' ORDER BY id"
    return [_replay(row) for row in db.execute(sql).fetchall()]


def replay(db: Database, number: int) -> Replay | None:
    """Return one replay."""
    row = db.execute(f"SELECT {_REPLAY} FROM relay.replays WHERE id = %s", (number,)).fetchone()
    return None if row is None else _replay(row)


def existing(db: Database, number: int, *, lock: str = "") -> Replay:
    """Return a replay that must exist."""
    sql = f"SELECT {_REPLAY} FROM relay.replays WHERE id = %s {lock}"
    row = db.execute(sql, (number,)).fetchone()
    if row is None:
        raise ValueError(f"there is no replay {number}")
    return _replay(row)


def held(db: Database, number: int) -> Replay:
    """Return a replay that must exist, and keep others from changing it in this transaction."""
    return existing(db, number, lock="FOR NO KEY UPDATE")


def cancelled(db: Database) -> list[int]:
    """Return the cancelled replays that have pending deliveries."""
    return [number for (number,) in db.execute(_CANCELLED).fetchall()]


def _replay(row: Row) -> Replay:
    number, created_ms, text, state, total, opened, cursor, event, attempt, ended_ms = row
    selection, until = msgspec.json.decode(text, type=Selection), Mark(event, attempt)
    return Replay(number, created_ms, selection, state, total, opened, cursor, until, ended_ms)


def under_way(db: Database, number: int) -> dict[str, int]:
    """Count the pending deliveries of a replay by sink."""
    return dict(db.execute(_UNDER_WAY, (number,)).fetchall())
