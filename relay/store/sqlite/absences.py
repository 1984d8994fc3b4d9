"""Absences in SQLite: each is stored in the transaction of the heartbeat that ends it."""

from collections.abc import Sequence

from relay.core.downtime import between
from relay.store.absences import LOSSLESS_MAX, Absence, Cause, absence_of
from relay.store.sqlite import queries
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

_COLUMNS = "id, cause, from_at, to_at, lost_until, acknowledged_at"
_OPEN = "lost_until IS NOT NULL AND acknowledged_at IS NULL"
_ADD = """
INSERT INTO absences (cause, from_at, to_at, lost_until) VALUES (?, ?, ?, ?)
"""
_FORGET = "DELETE FROM absences WHERE lost_until IS NULL AND id <= ?"
_ONE = f"SELECT {_COLUMNS} FROM absences WHERE id = ?"
_NEWEST = f"""
SELECT {_COLUMNS} FROM absences WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2
"""
_UNACKNOWLEDGED = f"SELECT {_COLUMNS} FROM absences WHERE {_OPEN} ORDER BY id LIMIT ?"
_LOSS = f"SELECT coalesce(sum(lost_until - from_at), 0) FROM absences WHERE {_OPEN}"
# Not the absences from before the source's first view, which cost it nothing.
_UNRECONCILED = f"""
SELECT {_COLUMNS} FROM absences a
WHERE lost_until IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM reconciliations r
        WHERE r.source = ?1 AND r.state = 'done' AND NOT r.dry
            AND r.since <= a.from_at AND r.until >= a.lost_until
            AND coalesce(json_array_length(r.report, '$.unrequested'), 0) = 0
    )
    AND to_at > coalesce((SELECT at FROM audience WHERE source = ?1 ORDER BY at LIMIT 1), 0)
ORDER BY id
"""
_ACKNOWLEDGE = """
UPDATE absences SET acknowledged_at = ? WHERE id = ? AND acknowledged_at IS NULL
"""


class SqliteAbsences(Part):
    """Fulfils `relay.store.absences.Absences`."""

    async def last_alive_ms(self) -> int | None:
        return await self._reader.read(lambda db: queries.recall(db, "heartbeat"))

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        def beat(db: sqlite3.Connection) -> Absence | None:
            gap = between(queries.recall(db, "heartbeat"), now_ms)
            queries.remember(db, "heartbeat", now_ms)
            if gap is None or gap.to_ms - gap.from_ms <= over_ms:
                return None
            lost_until = None if gap.lacks is None else gap.lacks.to_ms
            number = db.execute(_ADD, (cause, gap.from_ms, gap.to_ms, lost_until)).lastrowid or 0
            db.execute(_FORGET, (number - LOSSLESS_MAX,))
            return _one(db, number)

        self._room.require()
        return await self._writer.transact(beat)

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        return await self._reader.read(lambda db: _absences(db, _NEWEST, before, limit))

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        return await self._reader.read(lambda db: _absences(db, _UNACKNOWLEDGED, limit))

    async def unacknowledged_loss_ms(self) -> int:
        return await self._reader.read(lambda db: int(db.execute(_LOSS).fetchone()[0]))

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        def acknowledge(db: sqlite3.Connection) -> Absence | None:
            db.execute(_ACKNOWLEDGE, (now_ms, number))
            return _one(db, number)

        return await self._writer.transact(acknowledge)


def unreconciled(db: sqlite3.Connection, source: str) -> list[Absence]:
    """Return the absences that lost events and that no run of a source has covered."""
    return [absence_of(row) for row in db.execute(_UNRECONCILED, (source,))]


def _one(db: sqlite3.Connection, number: int) -> Absence | None:
    return next(iter(_absences(db, _ONE, number)), None)


def _absences(db: sqlite3.Connection, sql: str, *values: int | None) -> list[Absence]:
    return [absence_of(row) for row in db.execute(sql, values)]
