"""Counts of the newest events and attempts in PostgreSQL."""

from relay.core.minutes import MINUTE_MS
from relay.store.postgres.driver import Row
from relay.store.postgres.shared import Part
from relay.store.stepwise_statistics import DURATION

_ACCEPTED = f"""
SELECT min(seq), received_at - received_at %% {MINUTE_MS}, 'accepted', count(*)
FROM (
    SELECT seq, received_at FROM relay.events WHERE seq < %s ORDER BY seq DESC LIMIT %s
) AS newest
GROUP BY 2
"""
_ATTEMPTED = f"""
SELECT min(number), ended - ended %% {MINUTE_MS},
    CASE WHEN result = 'delivered' THEN 'delivered' ELSE 'failed' END, count(*)
FROM (
    SELECT number, started_at + duration_ms AS ended, result
    FROM relay.attempts WHERE number < %s ORDER BY number DESC LIMIT %s
) AS newest
GROUP BY 2, 3
"""
_OF_SINK = f"""
SELECT min(number), CASE WHEN fits THEN result END, CASE WHEN fits THEN status END,
    CASE WHEN fits THEN reason END, CASE WHEN fits THEN {DURATION} END, count(*),
    min(ended), max(ended)
FROM (
    SELECT number, started_at + duration_ms AS ended, duration_ms, result, status, reason,
        sink = %(sink)s AND started_at + duration_ms >= %(since)s AS fits
    FROM relay.attempts WHERE number < %(before)s ORDER BY number DESC LIMIT %(limit)s
) AS newest
GROUP BY 2, 3, 4, 5
"""


class PostgresSteps(Part):
    """Fulfils `relay.store.stepwise_statistics.Steps`."""

    async def accepted(self, before: int, limit: int) -> list[Row]:
        return await self._reader.read(lambda db: db.execute(_ACCEPTED, (before, limit)).fetchall())

    async def attempted(self, before: int, limit: int) -> list[Row]:
        return await self._reader.read(
            lambda db: db.execute(_ATTEMPTED, (before, limit)).fetchall()
        )

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> list[Row]:
        values = {"before": before, "limit": limit, "sink": sink, "since": since_ms}
        return await self._reader.read(lambda db: db.execute(_OF_SINK, values).fetchall())
