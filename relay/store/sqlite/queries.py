"""Queries of the SQLite store: functions of a connection, to be run on its thread."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from relay.core.delivery import Delivery, Status
from relay.store import Lease, Tier
from relay.store.rows import event_of, is_damaged, within_bytes
from relay.store.sqlite.driver import Row, snapshot, sqlite3
from relay.store.tiers import HELD_MS, OF_TIER

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
_SIZES = """
SELECT json_group_array(json_array(e.seq, length(e.body)))
FROM json_each(?) AS chosen
CROSS JOIN events AS e ON e.seq = chosen.value AND e.body IS NOT NULL
"""
# The bytes follow one another in a column of their own, because JSON has none.
_DELIVERIES = """
SELECT
    json_group_array(json_array(
        d.event, d.sink, d.attempts, d.first_attempt_at, d.replay, d.turn, d.tries, d.tried_at,
        e.source, e.id, e.kind, e.created_at, e.received_at, e.reconstructed,
        length(e.body), ifnull(length(e.headers), 0), length(e.digest)
    )),
    CAST(group_concat(e.body || ifnull(e.headers, '') || e.digest, '') AS BLOB)
FROM json_each(?) AS chosen
CROSS JOIN deliveries AS d ON d.event = chosen.value AND d.sink = ? AND d.status = 'pending'
CROSS JOIN events AS e ON e.seq = d.event AND e.body IS NOT NULL
"""
_OLDEST = """
SELECT e.received_at FROM deliveries d JOIN events e ON e.seq = d.event
WHERE d.sink = ? AND d.status = 'pending' AND d.replay IS NULL ORDER BY d.event LIMIT 1
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
) -> Lease:
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
) -> Lease:
    sound: list[Delivery] = []
    damaged: list[Delivery] = []
    next_due: list[int] = []
    values = {"sink": sink, "now": now_ms, "cancelled": orjson.dumps([*cancelled]).decode()}
    for tier, limit in limits.items():
        events = db.execute(_DUE[tier], values | {"limit": limit + len(leased)}).fetchone()[0]
        free = [seq for seq in orjson.loads(events) if seq not in leased]
        # Two of the tiers are usually empty.
        leased_now = _read(db, sink, free[:limit]) if free else []
        for delivery, digest in leased_now:
            (damaged if is_damaged(delivery.event.body, digest) else sound).append(delivery)
        if len(free) > len(leased_now) or len(leased_now) == limit:
            next_due.append(now_ms)
        else:
            next_due += [
                ms for (ms,) in db.execute(_NEXT_DUE[tier], (sink, now_ms)) if ms is not None
            ]
    return Lease(tuple(sound), min(next_due, default=None), tuple(damaged))


def _read(db: sqlite3.Connection, sink: str, events: Sequence[int]) -> list[tuple[Delivery, bytes]]:
    """Return pending deliveries with the digests of their bodies, up to `LEASE_BYTES_MAX`."""
    sizes = orjson.loads(_one(db, _SIZES, orjson.dumps(events).decode())[0])
    chosen = [event for event, _ in within_bytes(sizes, LEASE_BYTES_MAX, lambda row: row[1])]
    rows, content = _one(db, _DELIVERIES, orjson.dumps(chosen).decode(), sink)
    found: list[tuple[Delivery, bytes]] = []
    start = 0
    for *columns, body_size, headers_size, digest_size in orjson.loads(rows):
        body_end = start + body_size
        headers_end = body_end + headers_size
        end = headers_end + digest_size
        delivery = _delivery(columns, content[start:body_end], content[body_end:headers_end])
        found.append((delivery, content[headers_end:end]))
        start = end
    return found


def _one(db: sqlite3.Connection, sql: str, *values: object) -> Row:
    row: Row = db.execute(sql, values).fetchone()
    return row


def _delivery(columns: Sequence[Any], body: bytes, headers: bytes) -> Delivery:
    *event, reconstructed = columns[8:]
    return Delivery(
        seq=columns[0],
        sink=columns[1],
        attempts=columns[2],
        first_attempt_ms=columns[3],
        replay=columns[4],
        turn=columns[5],
        tries=columns[6],
        tried_ms=columns[7],
        event=event_of((*event, body, headers, reconstructed)),
    )


def oldest(db: sqlite3.Connection, sinks: Iterable[str]) -> dict[str, int]:
    """Return the receipt of each sink's oldest pending event."""
    rows = ((sink, db.execute(_OLDEST, (sink,)).fetchone()) for sink in sinks)
    return {sink: row[0] for sink, row in rows if row is not None}


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
