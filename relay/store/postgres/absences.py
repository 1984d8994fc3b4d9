"""Heartbeats in PostgreSQL, where an absence is a time in which no relay wrote one.

All relays share one heartbeat. Each write of it is one statement, which changes nothing if another
relay has written meanwhile: then there is no absence either.
"""

from collections.abc import Sequence
from typing import Any

from relay.core.delivery_rules import downtime_between
from relay.core.minutes import MINUTE_MS
from relay.store.absences import COLUMNS, LOSSLESS_MAX, Absence, Absences, Cause, absence_of
from relay.store.postgres.driver import Database, Query, Steps
from relay.store.postgres.shared import PostgresRepository

SKEW_MS = MINUTE_MS
"""Time by which another relay's clock may be ahead; beyond it, a clock has been set back."""

STALL_MS = MINUTE_MS
"""Gap between two heartbeats that is an absence although other relays are at work."""

ALIVE_S = 10
"""Time for which a relay counts as at work after it has said so.

A relay that follows one that crashed earlier than this does not record so short an absence.
"""

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
    FROM beaten RETURNING {COLUMNS}
), forgotten AS (
    DELETE FROM relay.absences
    WHERE lost_until IS NULL AND id <= (SELECT id FROM added) - %(kept)s
)
SELECT {COLUMNS} FROM added
UNION ALL
SELECT {COLUMNS} FROM relay.absences WHERE from_at = %(from)s AND to_at = %(to)s
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


class PostgresAbsences(PostgresRepository, Absences):
    """Absences of all relays."""

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
        gap = downtime_between(heartbeat_ms, now_ms)
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
