"""Counts of the newest events and attempts in SQLite."""

from relay.core.minutes import MINUTE_MS
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.shared import Part
from relay.store.stepwise_statistics import DURATION

_ACCEPTED = f"""
SELECT min(seq), received_at - received_at % {MINUTE_MS}, 'accepted', count(*)
FROM (SELECT seq, received_at FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?)
GROUP BY 2
"""
_ATTEMPTED = f"""
SELECT min(number), ended - ended % {MINUTE_MS},
    iif(result = 'delivered', 'delivered', 'failed') AS kind, count(*)
FROM (
    SELECT rowid AS number, started_at + duration_ms AS ended, result
    FROM attempts WHERE rowid < ? ORDER BY rowid DESC LIMIT ?
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

    async def accepted(self, before: int, limit: int) -> list[Row]:
        return await self._read(_ACCEPTED, before, limit)

    async def attempted(self, before: int, limit: int) -> list[Row]:
        return await self._read(_ATTEMPTED, before, limit)

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> list[Row]:
        return await self._read(_OF_SINK, before, limit, sink, since_ms)

    async def _read(self, sql: str, *values: object) -> list[Row]:
        def read(db: sqlite3.Connection) -> list[Row]:
            return db.execute(sql, values).fetchall()

        return await self._reader.read(read)
