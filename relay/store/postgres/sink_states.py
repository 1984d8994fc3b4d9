"""States of sinks in PostgreSQL: a row per change, by the relay that owns the sink."""

from collections.abc import Collection, Mapping, Sequence

from relay.core.minutes import MINUTE_MS
from relay.store.postgres.driver import Database
from relay.store.postgres.shared import Part
from relay.store.sink_states import KEPT_MS, Change, LeftState, Span, spans_since

SKEW_MS = MINUTE_MS
"""Time by which another relay's clock may be ahead."""

_AT = """
SELECT DISTINCT ON (sink) sink, state FROM relay.sink_states WHERE at <= %s
ORDER BY sink, at DESC
"""
_AFTER = "SELECT sink, at, state FROM relay.sink_states WHERE at > %s ORDER BY at"
_LEFT = """
SELECT asked.sink, last.state, (
    SELECT s.at FROM relay.sink_states AS s WHERE s.sink = asked.sink AND s.state = last.state
    AND s.at > coalesce((
        SELECT other.at FROM relay.sink_states AS other
        WHERE other.sink = asked.sink AND other.state <> last.state ORDER BY other.at DESC LIMIT 1
    ), -1)
    ORDER BY s.at LIMIT 1
), coalesce((
    SELECT s.state = 'parked' FROM relay.sink_states AS s
    WHERE s.sink = asked.sink AND s.state IN ('active', 'parked') ORDER BY s.at DESC LIMIT 1
), false)
FROM unnest(%(sinks)b::text[]) AS asked(sink) CROSS JOIN LATERAL (
    SELECT s.state FROM relay.sink_states AS s
    WHERE s.sink = asked.sink AND s.state IS NOT NULL ORDER BY s.at DESC LIMIT 1
) AS last
"""
# Other relays note other sinks, and their clocks may be a little ahead.
_IS_AHEAD = f"""
{{row}}.at > %(now)s + CASE WHEN {{row}}.sink = ANY(%(sinks)b::text[]) THEN 0 ELSE {SKEW_MS} END
"""
_DROP_LATER = f"""
DELETE FROM relay.sink_states AS s WHERE at >= %(now)s AND EXISTS (
    SELECT 1 FROM relay.sink_states AS later
    WHERE later.sink = s.sink AND later.at > s.at AND {_IS_AHEAD.format(row="later")}
)
"""
_MOVE_LATER = f"""
UPDATE relay.sink_states AS s SET at = %(now)s
WHERE at > %(now)s AND {_IS_AHEAD.format(row="s")}
"""
_CHANGE = """
INSERT INTO relay.sink_states (sink, at, state)
SELECT noted.sink,
    CASE
        WHEN noted.since > coalesce(last.at, 0) THEN least(noted.since, %(now)s) ELSE %(now)s
    END,
    noted.state
FROM unnest(%(sinks)b::text[], %(states)b::text[], %(since)b::bigint[])
    AS noted(sink, state, since)
LEFT JOIN LATERAL (
    SELECT s.at, s.state FROM relay.sink_states AS s WHERE s.sink = noted.sink
    ORDER BY s.at DESC LIMIT 1
) AS last ON true
WHERE noted.state IS DISTINCT FROM last.state
ORDER BY noted.sink
ON CONFLICT (sink, at) DO UPDATE SET state = excluded.state
"""
_FORGET = """
DELETE FROM relay.sink_states WHERE (sink, at) IN (
    SELECT s.sink, s.at FROM relay.sink_states AS s WHERE s.at <= %(old)s AND (
        s.state IS NULL OR EXISTS (
            SELECT 1 FROM relay.sink_states AS later
            WHERE later.sink = s.sink AND later.at > s.at AND later.at <= %(old)s
        )
    ) FOR UPDATE SKIP LOCKED
)
"""


class PostgresSinkStates(Part):
    """Fulfils `relay.store.sink_states.SinkStates`."""

    async def note(self, changes: Mapping[str, Change], *, now_ms: int) -> None:
        values = {
            "sinks": list(changes),
            "states": [each.state for each in changes.values()],
            "since": [each.since_ms for each in changes.values()],
            "now": now_ms,
            "old": now_ms - KEPT_MS,
        }

        def note(db: Database) -> None:
            for statement in (_DROP_LATER, _MOVE_LATER, _CHANGE, _FORGET):
                db.execute(statement, values)

        await self._shared.background.transact(note)

    async def since(self, since_ms: int) -> Mapping[str, Sequence[Span]]:
        return await self._reader.read(
            lambda db: spans_since(
                since_ms, db.execute(_AT, (since_ms,)), db.execute(_AFTER, (since_ms,))
            )
        )

    async def left(self, sinks: Collection[str]) -> Mapping[str, LeftState]:
        values = {"sinks": list(sinks)}
        rows = await self._shared.leaser.read(lambda db: db.execute(_LEFT, values).fetchall())
        return {sink: LeftState(*state) for sink, *state in rows}
