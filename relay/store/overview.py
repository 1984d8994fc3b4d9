"""Figures of the store for the verdict, besides the backlogs, read from its indexes alone."""

from collections.abc import Iterable, Mapping

import msgspec

from relay.store.sql import Database, Sql


class DeadLetterSummary(msgspec.Struct, frozen=True):
    """The dead letters of one sink."""

    since_ms: int | None
    """Time of the first death: the earliest `first_ms` of the sink's `Reason`s."""
    reason: str | None
    """Reason of the last death."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All figures; times are milliseconds since the epoch."""

    alive_ms: int | None
    """Time of the last stored heartbeat."""
    replaying_ms: Mapping[str, int]
    """Start of the oldest replay with pending deliveries, by sink."""
    dead: Mapping[str, DeadLetterSummary]
    unreadable: int
    """Number of verified requests without an event."""
    unreadable_since_ms: int | None
    """Time of the first of these."""
    unreadable_ms: int | None
    """Time of the last of these."""


_ALIVE = Sql("SELECT value FROM main.state WHERE name = 'heartbeat'")
_FIRST_DEATH = Sql("""
SELECT min(settled_at) FROM main.deliveries WHERE sink = :sink AND status = 'dead'
""")
_LAST_DEATH = Sql("""
SELECT reason FROM main.deliveries WHERE sink = :sink AND status = 'dead'
ORDER BY settled_at DESC NULLS LAST, reason COLLATE BINARY LIMIT 1
""")
_UNREADABLE = Sql("SELECT count(*) FROM main.unreadable")
_FIRST_UNREADABLE = Sql("SELECT received_at FROM main.unreadable ORDER BY rowid LIMIT 1")
_LAST_UNREADABLE = Sql("SELECT received_at FROM main.unreadable ORDER BY rowid DESC LIMIT 1")


def overview(db: Database, sinks: Iterable[str], *, replaying_ms: Mapping[str, int]) -> Overview:
    """Read the overview; `sinks` are those with dead letters."""
    return Overview(
        alive_ms=_value(db, _ALIVE),
        replaying_ms=replaying_ms,
        dead={sink: _dead(db, sink) for sink in sinks},
        unreadable=_value(db, _UNREADABLE) or 0,
        unreadable_since_ms=_value(db, _FIRST_UNREADABLE),
        unreadable_ms=_value(db, _LAST_UNREADABLE),
    )


def _value(db: Database, text: Sql) -> int | None:
    row = db.execute(text, {}).fetchone()
    return None if row is None else int(row[0])


def _dead(db: Database, sink: str) -> DeadLetterSummary:
    (since_ms,) = db.execute(_FIRST_DEATH, {"sink": sink}).fetchone() or (None,)
    (reason,) = db.execute(_LAST_DEATH, {"sink": sink}).fetchone() or (None,)
    return DeadLetterSummary(since_ms=since_ms, reason=reason)
