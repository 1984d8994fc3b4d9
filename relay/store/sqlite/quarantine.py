"""The quarantine in SQLite."""

from collections.abc import Sequence

from relay.core.authentication import UnverifiedRequest
from relay.store.quarantine import STEP_BYTES, STEP_ROWS, Kept, Rotation
from relay.store.rows import within_bytes
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

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


class SqliteQuarantine(Part):
    """Fulfils `relay.store.quarantine.Quarantine`."""

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        def begin(db: sqlite3.Connection) -> Rotation:
            until = db.execute(_UNTIL, (source,)).fetchone()
            if until is not None and until[0] <= now_ms:
                # The old rotation is over, so this is a new one, which takes over the waiting
                # requests.
                db.execute(_RESTART, (now_ms, source))
            db.execute(_BEGIN, (source, now_ms, until_ms, expires_ms))
            return _rotations(db, source)[0]

        return await self._writer.transact(begin)

    async def disarm(self, source: str, *, now_ms: int) -> None:
        await self._writer.execute(_DISARM, now_ms, source)

    async def keep(self, request: UnverifiedRequest) -> None:
        self._room.require()
        await self._writer.transact(lambda db: _keep(db, request))

    async def rotations(self) -> Sequence[Rotation]:
        return await self._reader.read(_rotations)

    async def rotation(self, source: str) -> Rotation | None:
        return next(iter(await self._reader.read(lambda db: _rotations(db, source))), None)

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        values = (source, after, limit)
        rows = await self._reader.read(lambda db: db.execute(_WAITING, values).fetchall())
        return [Kept(number, UnverifiedRequest(*rest)) for number, *rest in rows]

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        def release(db: sqlite3.Connection) -> None:
            db.executemany(_REMOVE, [(number,) for number in numbers])
            db.execute(_COUNT_VERIFIED, (len(numbers), duplicates, source))

        await self._writer.transact(release)

    async def expire(self, source: str) -> bool:
        more = await self._writer.transact(lambda db: _expire(db, source))
        if not more:
            self._shared.wiper.start()
        return more


def _keep(db: sqlite3.Connection, request: UnverifiedRequest) -> None:
    source, received_ms, *contents = request
    db.execute(_KEEP, (source, received_ms, request.size, *contents))
    db.execute(_COUNT_KEPT, (source,))


def _expire(db: sqlite3.Connection, source: str) -> bool:
    oldest = db.execute(_OLDEST, (source, STEP_ROWS)).fetchall()
    removed = within_bytes(oldest, STEP_BYTES, lambda row: row[1])
    db.executemany(_REMOVE, [(number,) for number, _ in removed])
    if not oldest:
        db.execute(_END, (source,))
    return bool(oldest)


def _rotations(db: sqlite3.Connection, source: str | None = None) -> list[Rotation]:
    return [Rotation(*row) for row in db.execute(_ROTATIONS, (source, source))]
