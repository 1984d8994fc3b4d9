"""The quarantine in SQLite."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from relay.core.authentication import UnverifiedRequest
from relay.core.errors import StoreError
from relay.store.quarantine import Kept, Rotation
from relay.store.sqlite.disk import Room
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.operator_writes import for_each

T = TypeVar("T")

STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits per transaction, as for retention: removed data is overwritten."""

_UNTIL = "SELECT until FROM rotations WHERE source = ?"
_RESTART = """
UPDATE rotations SET begun_at = ?, verified = 0, duplicates = 0,
    kept = (SELECT count(*) FROM quarantine q WHERE q.source = rotations.source)
WHERE source = ?
"""
_BEGIN = """
INSERT INTO rotations (source, begun_at, until, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    until = max(until, excluded.until), expires_at = max(expires_at, excluded.expires_at)
"""
_DISARM = "UPDATE rotations SET until = min(until, ?) WHERE source = ?"
_KEEP = """
INSERT INTO quarantine (source, received_at, size, signature, headers, body)
VALUES (?, ?, ?, ?, ?, ?)
"""
_COUNT_KEPT = "UPDATE rotations SET kept = kept + 1 WHERE source = ?"
_ROTATIONS = """
SELECT r.source, begun_at, until, expires_at, kept, verified, duplicates,
    count(q.number), coalesce(sum(q.size), 0)
FROM rotations r LEFT JOIN quarantine q ON q.source = r.source
WHERE ? IS NULL OR r.source = ? GROUP BY r.source
"""
_WAITING = """
SELECT number, source, received_at, signature, headers, body FROM quarantine
WHERE source = ? AND number > ? ORDER BY number LIMIT ?
"""
_REMOVE = "DELETE FROM quarantine WHERE number = ?"
_COUNT_VERIFIED = """
UPDATE rotations SET verified = verified + ?, duplicates = duplicates + ? WHERE source = ?
"""
_OLDEST = "SELECT number, size FROM quarantine WHERE source = ? ORDER BY number LIMIT ?"
_END = "DELETE FROM rotations WHERE source = ?"


class _Start(NamedTuple):
    source: str
    now_ms: int
    until_ms: int
    expires_ms: int


class _Release(NamedTuple):
    source: str
    numbers: Sequence[int]
    duplicates: int


class SqliteQuarantine:
    """Fulfils `relay.store.quarantine.Quarantine`; shares the parts of its store."""

    def __init__(
        self, reader: Connection, writer: GroupCommit, *, room: Room, wipe: Callable[[], object]
    ) -> None:
        """`wipe` starts wiping removed data from the files."""
        self._reader = reader
        self._writer = writer
        self._room = room
        self._wipe = wipe

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        start = _Start(source, now_ms, until_ms, expires_ms)
        return await self._writer.submit(_BEGIN_EACH, start)

    async def disarm(self, source: str, *, now_ms: int) -> None:
        await self._writer.submit(_DISARM_EACH, (now_ms, source))

    async def keep(self, request: UnverifiedRequest) -> None:
        self._room.require()
        await self._writer.submit(_KEEP_EACH, request)

    async def rotations(self) -> Sequence[Rotation]:
        return await self._read(lambda db: _rotations(db, None))

    async def rotation(self, source: str) -> Rotation | None:
        return next(iter(await self._read(lambda db: _rotations(db, source))), None)

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        rows = await self._read(lambda db: db.execute(_WAITING, (source, after, limit)).fetchall())
        return [Kept(number, UnverifiedRequest(*rest)) for number, *rest in rows]

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        await self._writer.submit(_RELEASE_EACH, _Release(source, numbers, duplicates))

    async def expire(self, source: str) -> bool:
        more = await self._writer.submit(_EXPIRE_EACH, source)
        if not more:
            self._wipe()
        return more

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _begin(db: sqlite3.Connection, start: _Start) -> Rotation:
    source, now_ms, _, _ = start
    before = db.execute(_UNTIL, (source,)).fetchone()
    if before is not None and before[0] <= now_ms:
        # The old rotation is over, so this is a new one, which takes over the waiting requests.
        db.execute(_RESTART, (now_ms, source))
    db.execute(_BEGIN, start)
    return _rotations(db, source)[0]


def _disarm(db: sqlite3.Connection, values: tuple[int, str]) -> None:
    db.execute(_DISARM, values)


def _keep(db: sqlite3.Connection, request: UnverifiedRequest) -> None:
    source, received_ms, *contents = request
    db.execute(_KEEP, (source, received_ms, request.size, *contents))
    db.execute(_COUNT_KEPT, (source,))


def _release(db: sqlite3.Connection, release: _Release) -> None:
    db.executemany(_REMOVE, [(number,) for number in release.numbers])
    db.execute(_COUNT_VERIFIED, (len(release.numbers), release.duplicates, release.source))


def _expire(db: sqlite3.Connection, source: str) -> bool:
    left = STEP_BYTES
    oldest = db.execute(_OLDEST, (source, STEP_ROWS)).fetchall()
    for number, size in oldest:
        if left <= 0:
            break
        left -= size
        db.execute(_REMOVE, (number,))
    if not oldest:
        db.execute(_END, (source,))
    return bool(oldest)


def _rotations(db: sqlite3.Connection, source: str | None) -> list[Rotation]:
    names = Rotation.__dataclass_fields__
    rows = db.execute(_ROTATIONS, (source, source)).fetchall()
    return [Rotation(**dict(zip(names, row, strict=True))) for row in rows]


_BEGIN_EACH = for_each(_begin)
_DISARM_EACH = for_each(_disarm)
_KEEP_EACH = for_each(_keep)
_RELEASE_EACH = for_each(_release)
_EXPIRE_EACH = for_each(_expire)
