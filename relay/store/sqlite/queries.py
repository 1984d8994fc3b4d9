"""Queries of the SQLite store: functions of a connection, to be run on its thread."""

from collections.abc import Collection, Iterable, Mapping

import orjson

from relay.core.delivery import Delivery, Status
from relay.store import FirstDue, LeasedBatch, Tier
from relay.store.ordering import HELD_MS
from relay.store.rows import EVENT, event_of, is_damaged, within_bytes
from relay.store.sqlite.driver import Row, snapshot, sqlite3
from relay.store.tiers import OF_TIER

LEASE_BYTES_MAX = 4 << 20
"""Total size of bodies, in bytes, at which a lease ends."""

_NOT_CANCELLED = "ifnull(replay, 0) NOT IN (SELECT value FROM json_each(:cancelled))"
DUE = {
    tier: f"""
SELECT event FROM deliveries
WHERE sink = :sink AND status = 'pending' AND {belongs} AND due_at <= :now
    AND {"TRUE" if tier == "live" else _NOT_CANCELLED}
ORDER BY due_at, event LIMIT :limit
"""
    for tier, belongs in OF_TIER.items()
}
# One row, because Python's lock changes hands at each row.
_DUE = {tier: f"SELECT json_group_array(event) FROM ({sql})" for tier, sql in DUE.items()}
_NEXT_DUE = {
    tier: f"""
SELECT min(due_at) FROM deliveries
WHERE sink = ? AND status = 'pending' AND {belongs} AND due_at > ? AND due_at < {HELD_MS}
"""
    for tier, belongs in OF_TIER.items()
}
_FIRST_DUE = {
    tier: f"""
SELECT json_group_array(due_at) FROM (
    SELECT due_at FROM deliveries
    WHERE sink = :sink AND status = 'pending' AND {belongs} AND due_at <= :now
        AND {"TRUE" if tier == "live" else _NOT_CANCELLED}
    ORDER BY due_at LIMIT :under_way + 1
)
"""
    for tier, belongs in OF_TIER.items()
}
_HELD = " OR ".join(
    f"""
EXISTS (
    SELECT 1 FROM deliveries
    WHERE sink = :sink AND status = 'pending' AND {belongs} AND due_at >= {HELD_MS}
)
"""
    for belongs in OF_TIER.values()
)
_DELIVERIES = f"""
SELECT d.event, d.sink, d.attempts, d.first_attempt_at, d.replay, d.turn, d.tries, d.tried_at,
       {EVENT}, e.digest
FROM json_each(?) AS chosen
CROSS JOIN deliveries AS d ON d.event = chosen.value AND d.sink = ? AND d.status = 'pending'
CROSS JOIN events AS e ON e.seq = d.event AND e.body IS NOT NULL
"""
_BODY, _DIGEST = 13, 16
"""Columns of `_DELIVERIES`."""
_OLDEST = """
SELECT e.received_at FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'pending' AND d.replay IS NULL ORDER BY d.event LIMIT 1
"""
RETRYING_MAX = 10_000
"""Counted at most: the count is made each second."""

_RETRYING = f"""
SELECT count(*) FROM (
    SELECT 1 FROM deliveries
    WHERE sink = ? AND status = 'pending' AND tries > 0 AND due_at > ? AND due_at < {HELD_MS}
    LIMIT {RETRYING_MAX}
)
"""
# One query per partial index: any other reads and sorts the whole table.
TALLIES = (
    *(
        f"SELECT sink, 'pending', count(*) FROM deliveries WHERE status = 'pending' AND {belongs} "
        "GROUP BY sink"
        for belongs in ("replay IS NULL", "replay IS NOT NULL")
    ),
    "SELECT sink, 'dead', count(*) FROM deliveries WHERE status = 'dead' GROUP BY sink",
)
REMEMBER = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_RECALL = "SELECT value FROM state WHERE name = ?"


def due(
    db: sqlite3.Connection,
    sink: str,
    *,
    now_ms: int,
    limits: Mapping[Tier, int],
    leased: frozenset[int],
    cancelled: Collection[int],
) -> LeasedBatch:
    """Return the longest due deliveries of each tier, and the next due time.

    Leaves out leased ones and those of cancelled replays.
    """
    with snapshot(db):
        return _due(db, sink, now_ms=now_ms, limits=limits, leased=leased, cancelled=cancelled)


def _due(
    db: sqlite3.Connection,
    sink: str,
    *,
    now_ms: int,
    limits: Mapping[Tier, int],
    leased: frozenset[int],
    cancelled: Collection[int],
) -> LeasedBatch:
    sound: list[Delivery] = []
    damaged: list[Delivery] = []
    next_due: list[int] = []
    values = {"sink": sink, "now": now_ms, "cancelled": orjson.dumps([*cancelled]).decode()}
    for tier, limit in limits.items():
        events = db.execute(_DUE[tier], values | {"limit": limit + len(leased)}).fetchone()[0]
        free = [seq for seq in orjson.loads(events) if seq not in leased]
        chosen = orjson.dumps(free[:limit]).decode()
        # Two of the tiers are usually empty.
        candidates = db.execute(_DELIVERIES, (chosen, sink)) if free else ()
        rows = list(within_bytes(candidates, LEASE_BYTES_MAX, lambda row: len(row[_BODY])))
        for row in rows:
            (damaged if is_damaged(row[_BODY], row[_DIGEST]) else sound).append(_delivery(row))
        if len(free) > len(rows) or len(rows) == limit:
            next_due.append(now_ms)
        else:
            next_due += [
                ms for (ms,) in db.execute(_NEXT_DUE[tier], (sink, now_ms)) if ms is not None
            ]
    return LeasedBatch(tuple(sound), min(next_due, default=None), tuple(damaged))


def _delivery(row: Row) -> Delivery:
    return Delivery(
        seq=row[0],
        sink=row[1],
        attempts=row[2],
        first_attempt_ms=row[3],
        replay=row[4],
        turn=row[5],
        tries=row[6],
        tried_ms=row[7],
        event=event_of(row[8:16]),
    )


def first_due(
    db: sqlite3.Connection,
    sinks: Mapping[str, int],
    *,
    now_ms: int,
    cancelled: Collection[int],
) -> dict[str, FirstDue]:
    """Return what each sink could send next; takes the number of its deliveries under way."""
    found, not_wanted = {}, orjson.dumps([*cancelled]).decode()
    for sink, under_way in sinks.items():
        values = {"sink": sink, "now": now_ms, "cancelled": not_wanted, "under_way": under_way}
        firsts = (db.execute(sql, values).fetchone()[0] for sql in _FIRST_DUE.values())
        due = sorted(ms for text in firsts for ms in orjson.loads(text))
        due_ms = due[under_way] if len(due) > under_way else None
        is_held = db.execute(f"SELECT {_HELD}", values).fetchone()[0]
        found[sink] = FirstDue(due_ms=due_ms, is_held=bool(is_held))
    return found


def oldest(db: sqlite3.Connection, sinks: Iterable[str]) -> dict[str, int]:
    """Return the receipt of each sink's oldest pending event."""
    rows = ((sink, db.execute(_OLDEST, (sink,)).fetchone()) for sink in sinks)
    return {sink: row[0] for sink, row in rows if row is not None}


def retrying(db: sqlite3.Connection, sinks: Iterable[str], *, now_ms: int) -> dict[str, int]:
    """Count each sink's pending deliveries that wait for the time of their next try."""
    return {sink: db.execute(_RETRYING, (sink, now_ms)).fetchone()[0] for sink in sinks}


def tallies(db: sqlite3.Connection) -> dict[str, dict[Status, int]]:
    """Count the pending and the dead deliveries of each sink."""
    counts: dict[str, dict[Status, int]] = {}
    for sql in TALLIES:
        for sink, status, count in db.execute(sql):
            counts.setdefault(sink, dict.fromkeys(Status, 0))[Status(status)] += count
    return counts


def remember(db: sqlite3.Connection, name: str, value: int) -> None:
    """Store one of the relay's own values."""
    db.execute(REMEMBER, (name, value))


def recall(db: sqlite3.Connection, name: str) -> int | None:
    """Read one of the relay's own values."""
    row = db.execute(_RECALL, (name,)).fetchone()
    return None if row is None else int(row[0])


def faults(db: sqlite3.Connection) -> tuple[str, ...]:
    """Return the faults that SQLite's own checks find, in the words of `PRAGMA quick_check`."""
    texts = [str(row[0]) for row in db.execute("PRAGMA quick_check")]
    orphans = db.execute("PRAGMA foreign_key_check").fetchall()
    texts += [f"row {row[1]} of {row[0]} refers to a missing event" for row in orphans]
    return tuple(text for text in texts if text != "ok")
