"""Counts of the newest events and attempts in SQLite."""

from relay.store.rows import ORIGINAL
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.shared import Part
from relay.store.stepwise_statistics import DURATION, SECOND_MS, Numbers

_LAST = """
SELECT coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(rowid) FROM attempts), 0)
"""
_ACCEPTED = f"""
SELECT min(seq), received_at - received_at % {SECOND_MS}, 'accepted',
    count(*) FILTER (WHERE reconstructed = {ORIGINAL})
FROM (
    SELECT seq, received_at, reconstructed FROM events
    WHERE seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?
)
GROUP BY 2
"""
_ATTEMPTED = f"""
SELECT min(number), ended - ended % {SECOND_MS},
    iif(result = 'delivered', 'delivered', 'failed') AS kind, count(*)
FROM (
    SELECT rowid AS number, started_at + duration_ms AS ended, result
    FROM attempts WHERE rowid > ? AND rowid < ? ORDER BY rowid DESC LIMIT ?
)
GROUP BY 2, 3
"""
_OF_SINK = f"""
SELECT min(number), iif(fits, result, NULL), iif(fits, status, NULL), iif(fits, reason, NULL),
    iif(fits, {DURATION}, NULL), count(*), min(ended), max(ended)
FROM (
    SELECT rowid AS number, started_at + duration_ms AS ended, duration_ms, result, status,
        reason, sink = ?3 AND started_at + duration_ms >= ?4 AS fits
    FROM attempts WHERE rowid < ?1 ORDER BY rowid DESC LIMIT ?2
)
GROUP BY 2, 3, 4, 5
"""


class SqliteSteps(Part):
    """Fulfils `relay.store.stepwise_statistics.Steps`."""

    async def last(self) -> Numbers:
        (row,) = await self._read(_LAST)
        return Numbers(*row)

    async def accepted(self, after: int, before: int, limit: int) -> list[Row]:
        return await self._read(_ACCEPTED, after, before, limit)

    async def attempted(self, after: int, before: int, limit: int) -> list[Row]:
        return await self._read(_ATTEMPTED, after, before, limit)

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> list[Row]:
        return await self._read(_OF_SINK, before, limit, sink, since_ms)

    async def _read(self, sql: str, *values: object) -> list[Row]:
        def read(db: sqlite3.Connection) -> list[Row]:
            return db.execute(sql, values).fetchall()

        return await self._reader.read(read)
