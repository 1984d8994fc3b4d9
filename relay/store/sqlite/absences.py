"""Absences in SQLite: each is stored in the transaction of the heartbeat that ends it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from relay.core.downtime import Interval, between
from relay.core.errors import StoreError
from relay.store.absences import Absence, Cause
from relay.store.sqlite import queries
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection, Row, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.operator_writes import for_each

T = TypeVar("T")

LOSSLESS_MAX = 1000
"""Stored absences without a loss, so that frequent restarts do not fill the store."""

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
    """Fulfils `relay.store.absences.Absences`; shares the parts of its store."""

    def __init__(self, reader: Connection, writer: GroupCommit, *, room: Room) -> None:
        self._reader = reader
        self._writer = writer
        self._room = room

    async def last_alive_ms(self) -> int | None:
        return await self._read(lambda db: queries.recall(db, "heartbeat"))

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        self._room.require()
        return await self._writer.submit(_BEAT_EACH, _Beat(now_ms, cause, over_ms))

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
        return await self._writer.submit(_ACKNOWLEDGE_EACH, (now_ms, number))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _beat(db: sqlite3.Connection, beat: _Beat) -> Absence | None:
    gap = between(queries.recall(db, "heartbeat"), beat.now_ms)
    queries.remember(db, [("heartbeat", beat.now_ms)])
    if gap is None or gap.to_ms - gap.from_ms <= beat.over_ms:
        return None
    lost_until = None if gap.lacks is None else gap.lacks.to_ms
    number = db.execute(_ADD, (beat.cause, gap.from_ms, gap.to_ms, lost_until)).lastrowid or 0
    db.execute(_FORGET, (number - LOSSLESS_MAX,))
    return _one(db, number)


def _acknowledge(db: sqlite3.Connection, values: tuple[int, int]) -> Absence | None:
    db.execute(_ACKNOWLEDGE, values)
    return _one(db, values[1])


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


_BEAT_EACH = for_each(_beat)
_ACKNOWLEDGE_EACH = for_each(_acknowledge)
