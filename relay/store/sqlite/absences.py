"""Absences in SQLite: each is written together with the sign of life that ends it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from relay.core.downtime import Interval, between
from relay.core.errors import StoreError
from relay.store.absences import Absence, Cause
from relay.store.sqlite import queries
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection, Row, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, meaning
from relay.store.sqlite.operator_writes import each

T = TypeVar("T")

HARMLESS_KEPT = 1000
"""Absences without a loss: a relay that restarts all day must not fill its store with them."""

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
_ACKNOWLEDGE = """
UPDATE absences SET acknowledged_at = ? WHERE id = ? AND acknowledged_at IS NULL
"""


class _Beat(NamedTuple):
    now_ms: int
    cause: Cause
    over_ms: int


class SqliteAbsences:
    """Fulfils `relay.store.absences.Absences`; lives as long as the store whose parts it shares."""

    def __init__(self, reader: Connection, writer: GroupCommit, *, room: Room) -> None:
        self._reader = reader
        self._writer = writer
        self._room = room

    async def last_alive_ms(self) -> int | None:
        return await self._read(lambda db: queries.recall(db, "heartbeat"))

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        self._room.require()
        return await self._writer.submit(_BEAT, _Beat(now_ms, cause, over_ms))

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        return await self._read(
            lambda db: [_absence(row) for row in db.execute(_NEWEST, (before, limit))]
        )

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        return await self._read(
            lambda db: [_absence(row) for row in db.execute(_UNACKNOWLEDGED, (limit,))]
        )

    async def unacknowledged_loss_ms(self) -> int:
        return await self._read(lambda db: int(db.execute(_LOSS).fetchone()[0]))

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        return await self._writer.submit(_TAKE_NOTE, (now_ms, number))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise meaning(error) or StoreError(f"the store cannot be read: {error}") from None


def _beat(db: sqlite3.Connection, beat: _Beat) -> Absence | None:
    gap = between(queries.recall(db, "heartbeat"), beat.now_ms)
    queries.remember(db, [("heartbeat", beat.now_ms)])
    if gap is None or gap.to_ms - gap.from_ms <= beat.over_ms:
        return None
    lost_until = None if gap.lacks is None else gap.lacks.to_ms
    number = db.execute(_ADD, (beat.cause, gap.from_ms, gap.to_ms, lost_until)).lastrowid or 0
    db.execute(_FORGET, (number - HARMLESS_KEPT,))
    return _one(db, number)


def _take_note(db: sqlite3.Connection, wanted: tuple[int, int]) -> Absence | None:
    db.execute(_ACKNOWLEDGE, wanted)
    return _one(db, wanted[1])


def _one(db: sqlite3.Connection, number: int) -> Absence | None:
    row = db.execute(_ONE, (number,)).fetchone()
    return None if row is None else _absence(row)


def _absence(row: Row) -> Absence:
    number, cause, from_ms, to_ms, lost_until_ms, acknowledged_ms = row
    return Absence(
        id=number,
        cause=cause,
        from_ms=from_ms,
        to_ms=to_ms,
        lacks=None if lost_until_ms is None else Interval(from_ms=from_ms, to_ms=lost_until_ms),
        acknowledged_ms=acknowledged_ms,
    )


_BEAT = each(_beat)
_TAKE_NOTE = each(_take_note)
