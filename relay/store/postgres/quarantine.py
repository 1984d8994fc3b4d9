"""The quarantine in PostgreSQL; each change is one statement, which may be repeated."""

from collections.abc import Sequence

from relay.core.authentication import UnverifiedRequest
from relay.store.postgres import numbers, orders
from relay.store.postgres.driver import Database, Query, Steps
from relay.store.postgres.shared import Part
from relay.store.quarantine import STEP_BYTES, STEP_ROWS, Kept, Rotation

# An old rotation that is over is begun again, and takes over the waiting requests.
_BEGIN = """
INSERT INTO relay.rotations AS r (source, begun_at, until, expires_at)
VALUES (%(source)s, %(now)s, %(until)s, %(expires)s)
ON CONFLICT (source) DO UPDATE SET
    begun_at = CASE WHEN r.until <= %(now)s THEN %(now)s ELSE r.begun_at END,
    verified = CASE WHEN r.until <= %(now)s THEN 0 ELSE r.verified END,
    duplicates = CASE WHEN r.until <= %(now)s THEN 0 ELSE r.duplicates END,
    kept = CASE WHEN r.until <= %(now)s
        THEN (SELECT count(*) FROM relay.quarantine AS q WHERE q.source = r.source)
        ELSE r.kept END,
    until = greatest(r.until, excluded.until),
    expires_at = greatest(r.expires_at, excluded.expires_at)
"""
_DISARM = "UPDATE relay.rotations SET until = least(until, %s) WHERE source = %s"
_KEEP = """
WITH kept AS (
    INSERT INTO relay.quarantine (number, source, received_at, size, signature, headers, body)
    OVERRIDING SYSTEM VALUE
    SELECT * FROM unnest(
        %(number)b::bigint[], %(source)b::text[], %(received_at)b::bigint[], %(size)b::bigint[],
        %(signature)b::bytea[], %(headers)b::bytea[], %(body)b::bytea[]
    )
    ON CONFLICT (number) DO NOTHING RETURNING source
), counted AS (SELECT source, count(*) AS number FROM kept GROUP BY source)
UPDATE relay.rotations AS r SET kept = kept + counted.number
FROM counted WHERE r.source = counted.source
"""
_ROTATIONS = """
SELECT r.source, begun_at, until, expires_at, kept, verified, duplicates,
    count(q.number), coalesce(sum(q.size), 0)::bigint
FROM relay.rotations AS r LEFT JOIN relay.quarantine AS q ON q.source = r.source
WHERE %(source)s::text IS NULL OR r.source = %(source)s GROUP BY r.source ORDER BY r.source
"""
_WAITING = """
SELECT number, source, received_at, signature, headers, body FROM relay.quarantine
WHERE source = %s AND number > %s ORDER BY number LIMIT %s
"""
# Another relay may have removed some of them, and counted them.
_RELEASE = """
WITH released AS (
    DELETE FROM relay.quarantine WHERE number = ANY(%(numbers)b::bigint[]) RETURNING number
), counted AS (SELECT count(*) AS number FROM released)
UPDATE relay.rotations SET verified = verified + counted.number,
    duplicates = duplicates + least(counted.number, %(duplicates)s)
FROM counted WHERE source = %(source)s
"""
_EXPIRE = """
WITH oldest AS (
    SELECT number, sum(size) OVER (ORDER BY number) - size AS bytes_before FROM (
        SELECT number, size FROM relay.quarantine WHERE source = %(source)s
        ORDER BY number LIMIT %(rows)s
    ) AS first
), removed AS (
    DELETE FROM relay.quarantine AS q USING oldest
    WHERE q.number = oldest.number AND oldest.bytes_before < %(bytes)s
), ended AS (
    DELETE FROM relay.rotations WHERE source = %(source)s AND NOT EXISTS (SELECT 1 FROM oldest)
)
SELECT EXISTS (SELECT 1 FROM oldest)
"""


class PostgresQuarantine(Part):
    """Fulfils `relay.store.quarantine.Quarantine`."""

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        values = {"source": source, "now": now_ms, "until": until_ms, "expires": expires_ms}

        def begin(db: Database) -> Rotation:
            db.execute(_BEGIN, values)
            orders.count(db)
            return _rotations(db, source)[0]

        return await self._shared.background.transact(begin)

    async def disarm(self, source: str, *, now_ms: int) -> None:
        def disarm(db: Database) -> None:
            db.execute(_DISARM, (now_ms, source))
            orders.count(db)

        await self._shared.background.transact(disarm)

    async def keep(self, request: UnverifiedRequest) -> None:
        number = await numbers.draw(self._reader, "quarantine_number_seq")
        await self._writer.submit(_keep, (number, request))

    async def rotations(self) -> Sequence[Rotation]:
        return await self._reader.read(_rotations)

    async def rotation(self, source: str) -> Rotation | None:
        return next(iter(await self._reader.read(lambda db: _rotations(db, source))), None)

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        values = (source, after, limit)
        rows = await self._reader.read(lambda db: db.execute(_WAITING, values).fetchall())
        return [Kept(number, UnverifiedRequest(*rest)) for number, *rest in rows]

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        values = {"source": source, "numbers": list(numbers), "duplicates": duplicates}
        await self._shared.background.transact(lambda db: db.execute(_RELEASE, values).rowcount)

    async def expire(self, source: str) -> bool:
        values = {"source": source, "rows": STEP_ROWS, "bytes": STEP_BYTES}
        ((more,),) = await self._shared.background.transact(
            lambda db: db.execute(_EXPIRE, values).fetchall()
        )
        if not more:
            self._shared.vacuum.start("quarantine")
        return bool(more)


def _keep(requests: Sequence[tuple[int, UnverifiedRequest]]) -> Steps[Sequence[None]]:
    kept = [request for _, request in requests]
    yield Query(
        _KEEP,
        {
            "number": [number for number, _ in requests],
            "source": [each.source for each in kept],
            "received_at": [each.received_ms for each in kept],
            "size": [each.size for each in kept],
            "signature": [each.signature for each in kept],
            "headers": [each.headers for each in kept],
            "body": [each.body for each in kept],
        },
    )
    return [None] * len(requests)


def _rotations(db: Database, source: str | None = None) -> list[Rotation]:
    return [Rotation(*row) for row in db.execute(_ROTATIONS, {"source": source})]
