"""The quarantine: unverified requests that are kept apart from events during a rotation."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import orjson

from relay.core.authentication import UnverifiedRequest
from relay.store.repository import Repository, rows
from relay.store.rows import within_bytes
from relay.store.sql import Database, FilteredSql, Sql

RotationState = Literal["armed", "over"]
"""`armed` quarantines unverified requests; `over` only keeps those that it has."""


STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits of a step of `expire`, which other writes wait for."""


class Rotation(msgspec.Struct, frozen=True):
    """A rotation of one source's secret that has not expired."""

    source: str
    begun_ms: int
    until_ms: int
    """End of the time in which unverified requests are kept."""
    expires_ms: int
    """Time at which waiting requests are removed."""
    kept: int
    verified: int
    """Kept requests that verified later."""
    duplicates: int
    """Verified requests whose event was known already."""
    waiting: int
    bytes: int
    """Total size of the waiting requests."""

    def state(self, now_ms: int) -> RotationState:
        return "armed" if now_ms < self.until_ms else "over"


class Kept(NamedTuple):
    """A waiting request; `number` increases with each."""

    number: int
    request: UnverifiedRequest


# An old rotation that is over is begun again, and takes over the waiting requests.
_BEGIN = Sql("""
INSERT INTO main.rotations AS r (source, begun_at, until, expires_at)
VALUES (:source, :now, :until, :expires)
ON CONFLICT (source) DO UPDATE SET
    begun_at = CASE WHEN r.until <= :now THEN :now ELSE r.begun_at END,
    verified = CASE WHEN r.until <= :now THEN 0 ELSE r.verified END,
    duplicates = CASE WHEN r.until <= :now THEN 0 ELSE r.duplicates END,
    kept = CASE WHEN r.until <= :now
        THEN (SELECT count(*) FROM main.quarantine AS q WHERE q.source = r.source)
        ELSE r.kept END,
    until = greatest(r.until, excluded.until),
    expires_at = greatest(r.expires_at, excluded.expires_at)
""")
_DISARM = Sql("UPDATE main.rotations SET until = least(until, :now) WHERE source = :source")
_ROTATIONS = FilteredSql(
    """
SELECT r.source, begun_at, until, expires_at, kept, verified, duplicates,
    count(q.number), CAST(coalesce(sum(q.size), 0) AS bigint)
FROM main.rotations AS r LEFT JOIN main.quarantine AS q ON q.source = r.source
WHERE {where} GROUP BY r.source ORDER BY r.source
""",
    {"source": "r.source = :source"},
)
_WAITING = Sql("""
SELECT number, source, received_at, signature, headers, body FROM main.quarantine
WHERE source = :source AND number > :after ORDER BY number LIMIT :limit
""")
_OLDEST = Sql("""
SELECT number, size FROM main.quarantine WHERE source = :source ORDER BY number LIMIT :limit
""")
_REMOVE = Sql("""
DELETE FROM main.quarantine
WHERE number IN (SELECT CAST(value AS bigint) FROM json_each(:numbers) AS x)
""")
_COUNT_VERIFIED = Sql("""
UPDATE main.rotations SET verified = verified + :verified, duplicates = duplicates + :duplicates
WHERE source = :source
""")
_END = Sql("DELETE FROM main.rotations WHERE source = :source")


class Quarantine(Repository, ABC):
    """Keeps unverified requests apart from events.

    All methods may raise StoreError. Changes are on disk when they return.
    """

    @abstractmethod
    async def keep(self, request: UnverifiedRequest) -> None:
        """Store a request in a commit that others share; raises StoreFull below the free space."""

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        """Start a rotation, or extend the running one, whose times are never shortened."""
        values = {"source": source, "now": now_ms, "until": until_ms, "expires": expires_ms}

        def begin(db: Database) -> Rotation:
            db.execute(_BEGIN, values)
            self._connections.announce(db)
            return _rotations(db, source)[0]

        return await self._background.transact(begin)

    async def disarm(self, source: str, *, now_ms: int) -> None:
        """Keep no further requests; earlier ones are on disk when this returns."""

        def disarm(db: Database) -> None:
            db.execute(_DISARM, {"source": source, "now": now_ms})
            self._connections.announce(db)

        await self._background.transact(disarm)

    async def rotations(self) -> Sequence[Rotation]:
        """Return the rotations that have not expired."""
        return await self._reader.read(_rotations)

    async def rotation(self, source: str) -> Rotation | None:
        return next(iter(await self._reader.read(lambda db: _rotations(db, source))), None)

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        """Return the next waiting requests, ordered by number."""
        values = {"source": source, "after": after, "limit": limit}
        found = await rows(self._reader, _WAITING, values)
        return [Kept(number, UnverifiedRequest(*rest)) for number, *rest in found]

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        """Remove requests that were verified and accepted, `duplicates` of them known already."""
        await self._background.transact(
            lambda db: release(db, source, numbers, duplicates=duplicates)
        )

    async def expire(self, source: str) -> bool:
        """Remove some waiting requests, and in the end the rotation; True if more are left."""
        more = await self._background.transact(lambda db: expire(db, source))
        if not more:
            self._connections.overwrite("quarantine")
        return more


def release(db: Database, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
    """Remove requests and count them, but not those that another relay has removed."""
    if removed := _remove(db, numbers):
        counts = {"verified": removed, "duplicates": min(removed, duplicates)}
        db.execute(_COUNT_VERIFIED, {"source": source, **counts})


def expire(db: Database, source: str) -> bool:
    """Remove the oldest requests; False if there were none, and the rotation has ended."""
    oldest = db.execute(_OLDEST, {"source": source, "limit": STEP_ROWS}).fetchall()
    _remove(db, [number for number, _ in within_bytes(oldest, STEP_BYTES, lambda row: int(row[1]))])
    if not oldest:
        db.execute(_END, {"source": source})
    return bool(oldest)


def _remove(db: Database, numbers: Sequence[int]) -> int:
    return db.execute(_REMOVE, {"numbers": orjson.dumps(numbers).decode()}).rowcount


def _rotations(db: Database, source: str | None = None) -> list[Rotation]:
    values = {"source": source}
    return [Rotation(*row) for row in db.execute(_ROTATIONS.by(values), values)]
