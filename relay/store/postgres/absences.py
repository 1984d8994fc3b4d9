"""Absences in PostgreSQL: the time in which no relay wrote a heartbeat.

All relays share one heartbeat. Each write of it is one statement, which changes nothing if another
relay has written meanwhile: then there is no absence either.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from relay.core.downtime import between
from relay.core.minutes import MINUTE_MS
from relay.store.absences import LOSSLESS_MAX, Absence, Cause, absence_of
from relay.store.postgres.driver import Database, Query, Steps
from relay.store.postgres.shared import Part

SKEW_MS = MINUTE_MS
"""Time by which another relay's clock may be ahead; beyond it, a clock has been set back."""

STALL_MS = MINUTE_MS
"""Gap between two heartbeats that is an absence although other relays are at work."""

ALIVE_S = 10
"""Time for which a relay counts as at work after it has said so.

A relay that follows one that crashed earlier than this does not record so short an absence.
"""

_COLUMNS = "id, cause, from_at, to_at, lost_until, acknowledged_at"
_OPEN = "lost_until IS NOT NULL AND acknowledged_at IS NULL"
_LAST = f"""
SELECT
    (SELECT value FROM relay.state WHERE name = 'heartbeat'),
    EXISTS (
        SELECT FROM relay.members
        WHERE id <> %s AND beat_at > clock_timestamp() - interval '{ALIVE_S} s'
    )
"""
_BEAT = f"""
INSERT INTO relay.state AS s (name, value) VALUES ('heartbeat', %(now)s)
ON CONFLICT (name) DO UPDATE SET value =
    CASE WHEN s.value BETWEEN %(now)s AND %(now)s + {SKEW_MS} THEN s.value ELSE %(now)s END
"""
# The usual case in one statement: no gap that would be an absence.
_BEAT_ON = f"""
UPDATE relay.state SET value =
    CASE WHEN value BETWEEN %(now)s AND %(now)s + {SKEW_MS} THEN value ELSE %(now)s END
WHERE name = 'heartbeat' AND value >= %(now)s - %(over)s
RETURNING 1
"""
# What it adds is found again where it runs once more.
_END = f"""
WITH beaten AS (
    UPDATE relay.state SET value = %(to)s
    WHERE name = 'heartbeat' AND value = %(from)s RETURNING value
), added AS (
    INSERT INTO relay.absences (cause, from_at, to_at, lost_until)
    SELECT %(cause)s::text, %(from)s::bigint, %(to)s::bigint, %(lost_until)s::bigint
    FROM beaten RETURNING {_COLUMNS}
), forgotten AS (
    DELETE FROM relay.absences
    WHERE lost_until IS NULL AND id <= (SELECT id FROM added) - %(kept)s
)
SELECT {_COLUMNS} FROM added
UNION ALL
SELECT {_COLUMNS} FROM relay.absences WHERE from_at = %(from)s AND to_at = %(to)s
"""
_ONE = f"SELECT {_COLUMNS} FROM relay.absences WHERE id = %s"
_NEWEST = f"""
SELECT {_COLUMNS} FROM relay.absences
WHERE %(before)s::bigint IS NULL OR id < %(before)s ORDER BY id DESC LIMIT %(limit)s
"""
_UNACKNOWLEDGED = f"SELECT {_COLUMNS} FROM relay.absences WHERE {_OPEN} ORDER BY id LIMIT %s"
_LOSS = f"""
SELECT coalesce(sum(lost_until - from_at), 0)::bigint FROM relay.absences WHERE {_OPEN}
"""
# Not the absences from before the source's first view, which cost it nothing.
_UNRECONCILED = f"""
SELECT {_COLUMNS} FROM relay.absences AS a
WHERE lost_until IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM relay.reconciliations AS r
        WHERE r.source = %(source)s AND r.state = 'done' AND r.dry = 0
            AND r.since <= a.from_at AND r.until >= a.lost_until
            AND coalesce(json_array_length(r.report::json -> 'unrequested'), 0) = 0
    )
    AND to_at > coalesce(
        (SELECT at FROM relay.audience WHERE source = %(source)s ORDER BY at LIMIT 1), 0
    )
ORDER BY id
"""
_ACKNOWLEDGE = f"""
UPDATE relay.absences SET acknowledged_at = coalesce(acknowledged_at, %s) WHERE id = %s
RETURNING {_COLUMNS}
"""


def _beat(times_ms: Sequence[int]) -> Steps[Sequence[None]]:
    yield Query(_BEAT, {"now": max(times_ms)})
    return [None] * len(times_ms)


def _beat_on(beats: Sequence[dict[str, int]]) -> Steps[Sequence[bool]]:
    beaten = []
    for beat in beats:
        rows = yield Query(_BEAT_ON, beat)
        beaten.append(bool(rows))
    return beaten


def _end(gaps: Sequence[dict[str, Any]]) -> Steps[Sequence[Absence | None]]:
    ended = []
    for gap in gaps:
        rows = yield Query(_END, gap)
        ended.append(next(map(absence_of, rows), None))
    return ended


class PostgresAbsences(Part):
    """Fulfils `relay.store.absences.Absences`."""

    async def last_alive_ms(self) -> int | None:
        heartbeat_ms, is_shared = await self._reader.read(self._last)
        return None if is_shared else heartbeat_ms

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        if await self._writer.submit(_beat_on, {"now": now_ms, "over": over_ms}):
            return None
        heartbeat_ms, is_shared = await self._reader.read(self._last)
        if is_shared:
            # Others write heartbeats too, so only a stall of all of them is an absence.
            cause, over_ms = "stalled", max(over_ms, STALL_MS)
        gap = between(heartbeat_ms, now_ms)
        if gap is None or gap.to_ms - gap.from_ms <= over_ms:
            await self._writer.submit(_beat, now_ms)
            return None
        lost_until_ms = None if gap.lacks is None else gap.lacks.to_ms
        values = {"cause": cause, "from": gap.from_ms, "to": now_ms, "lost_until": lost_until_ms}
        return await self._writer.submit(_end, values | {"kept": LOSSLESS_MAX})

    def _last(self, db: Database) -> tuple[int | None, bool]:
        """Return the last heartbeat, and whether other relays are at work."""
        ((heartbeat_ms, is_shared),) = db.execute(_LAST, (self._shared.member,)).fetchall()
        return heartbeat_ms, is_shared

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        values = {"before": before, "limit": limit}
        return await self._reader.read(lambda db: _absences(db, _NEWEST, values))

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        return await self._reader.read(lambda db: _absences(db, _UNACKNOWLEDGED, (limit,)))

    async def unacknowledged_loss_ms(self) -> int:
        return await self._reader.read(lambda db: int(db.execute(_LOSS).fetchall()[0][0]))

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        absences = await self._shared.background.transact(
            lambda db: _absences(db, _ACKNOWLEDGE, (now_ms, number))
        )
        return next(iter(absences), None)


def unreconciled(db: Database, source: str) -> list[Absence]:
    """Return the absences that lost events and that no run of a source has covered."""
    return _absences(db, _UNRECONCILED, {"source": source})


def _absences(db: Database, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Absence]:
    return [absence_of(row) for row in db.execute(sql, values)]
