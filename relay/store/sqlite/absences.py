"""Heartbeats in SQLite; each is stored with the absence that it ends, in one transaction."""

from relay.core.delivery_rules import downtime_between
from relay.store.absences import COLUMNS, LOSSLESS_MAX, Absence, Absences, Cause, absence_of
from relay.store.sqlite import queries
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import SqliteRepository

_ADD = f"""
INSERT INTO absences (cause, from_at, to_at, lost_until) VALUES (?, ?, ?, ?) RETURNING {COLUMNS}
"""
_FORGET = "DELETE FROM absences WHERE lost_until IS NULL AND id <= ?"


class SqliteAbsences(SqliteRepository, Absences):
    """Absences of the only relay."""

    async def last_alive_ms(self) -> int | None:
        return await self._reader.read(lambda db: queries.recall(db, "heartbeat"))

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        def beat(db: sqlite3.Connection) -> Absence | None:
            gap = downtime_between(queries.recall(db, "heartbeat"), now_ms)
            queries.remember(db, "heartbeat", now_ms)
            if gap is None or gap.to_ms - gap.from_ms <= over_ms:
                return None
            lost_until = None if gap.lacks is None else gap.lacks.to_ms
            (row,) = db.execute(_ADD, (cause, gap.from_ms, gap.to_ms, lost_until)).fetchall()
            absence = absence_of(row)
            db.execute(_FORGET, (absence.id - LOSSLESS_MAX,))
            return absence

        self._room.require()
        return await self._writer.transact(beat)
