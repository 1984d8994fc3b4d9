"""Counts of the newest events and attempts in PostgreSQL."""

import asyncio
from collections.abc import Mapping, Sequence

from relay.store.postgres.driver import Row
from relay.store.postgres.shared import Part, Shared
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.rows import ORIGINAL
from relay.store.stepwise_statistics import DURATION, SECOND_MS, Numbers

_ACCEPTED = f"""
SELECT min(seq), received_at - received_at %% {SECOND_MS}, 'accepted',
    count(*) FILTER (WHERE reconstructed = {ORIGINAL})
FROM (
    SELECT seq, received_at, reconstructed FROM relay.events
    WHERE seq > %s AND seq < %s ORDER BY seq DESC LIMIT %s
) AS newest
GROUP BY 2
"""
_ATTEMPTED = f"""
SELECT min(number), ended - ended %% {SECOND_MS},
    CASE WHEN result = 'delivered' THEN 'delivered' ELSE 'failed' END, count(*)
FROM (
    SELECT number, started_at + duration_ms AS ended, result
    FROM relay.attempts WHERE number > %s AND number < %s ORDER BY number DESC LIMIT %s
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

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        # Those of other readers may be of an earlier look.
        self._events = VisibleNumbers(shared.reader, "events", "seq")
        self._attempts = VisibleNumbers(shared.reader, "attempts", "number")
        self._last = Numbers(0, 0)

    async def last(self) -> Numbers:
        event, attempt = self._last
        events, attempts = self._events.beyond(event), self._attempts.beyond(attempt)
        self._last = Numbers(*await asyncio.gather(events, attempts))
        return self._last

    async def accepted(self, after: int, before: int, limit: int) -> list[Row]:
        return await self._read(_ACCEPTED, (after, before, limit))

    async def attempted(self, after: int, before: int, limit: int) -> list[Row]:
        return await self._read(_ATTEMPTED, (after, before, limit))

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> list[Row]:
        values = {"before": before, "limit": limit, "sink": sink, "since": since_ms}
        return await self._read(_OF_SINK, values)

    async def _read(self, sql: str, values: Sequence[int] | Mapping[str, object]) -> list[Row]:
        return await self._reader.read(lambda db: db.execute(sql, values).fetchall())
