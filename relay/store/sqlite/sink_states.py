"""States of sinks in SQLite: a row per change."""

from collections.abc import Collection, Mapping, Sequence

from relay.core.sink_status import State
from relay.store.sink_states import KEPT_MS, Change, LeftState, Span, spans_since
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

_IS_FOLLOWED = """
EXISTS (
    SELECT 1 FROM sink_states AS later
    WHERE later.sink = s.sink AND later.at > s.at AND later.at <= {until}
)
"""
_AT = "SELECT sink, max(at), state FROM sink_states WHERE at <= ? GROUP BY sink"
_AFTER = "SELECT sink, at, state FROM sink_states WHERE at > ? ORDER BY at"
_LEFT = """
SELECT last.state, (
    SELECT s.at FROM sink_states AS s WHERE s.sink = last.sink AND s.state = last.state
    AND s.at > coalesce((
        SELECT other.at FROM sink_states AS other
        WHERE other.sink = last.sink AND other.state <> last.state ORDER BY other.at DESC LIMIT 1
    ), -1)
    ORDER BY s.at LIMIT 1
), coalesce((
    SELECT s.state = 'parked' FROM sink_states AS s
    WHERE s.sink = last.sink AND s.state IN ('active', 'parked') ORDER BY s.at DESC LIMIT 1
), 0)
FROM sink_states AS last WHERE last.sink = ? AND last.state IS NOT NULL
ORDER BY last.at DESC LIMIT 1
"""
_DROP_LATER = f"""
DELETE FROM sink_states AS s WHERE at > :now AND {_IS_FOLLOWED.format(until="9e18")}
"""
_MOVE_LATER = "UPDATE OR REPLACE sink_states SET at = :now WHERE at > :now"
_CHANGE = """
WITH last AS (SELECT at, state FROM sink_states WHERE sink = :sink ORDER BY at DESC LIMIT 1)
INSERT INTO sink_states
SELECT :sink,
    iif(:since_ms > coalesce((SELECT at FROM last), 0), min(:since_ms, :now), :now), :state
WHERE :state IS NOT (SELECT state FROM last)
ON CONFLICT DO UPDATE SET state = excluded.state
"""
_FORGET = f"""
DELETE FROM sink_states AS s WHERE at <= :old AND {_IS_FOLLOWED.format(until=":old")}
"""
_FORGET_UNKNOWN = "DELETE FROM sink_states WHERE at <= :old AND state IS NULL"


class SqliteSinkStates(Part):
    """Fulfils `relay.store.sink_states.SinkStates`."""

    async def note(self, changes: Mapping[str, Change], *, now_ms: int) -> None:
        now, old = {"now": now_ms}, {"old": now_ms - KEPT_MS}
        rows = [
            {"sink": sink, "state": each.state, "since_ms": each.since_ms, **now}
            for sink, each in changes.items()
        ]

        def note(db: sqlite3.Connection) -> None:
            db.execute(_DROP_LATER, now)
            db.execute(_MOVE_LATER, now)
            db.executemany(_CHANGE, rows)
            db.execute(_FORGET, old)
            db.execute(_FORGET_UNKNOWN, old)

        await self._writer.transact(note)

    async def since(self, since_ms: int) -> Mapping[str, Sequence[Span]]:
        def read(db: sqlite3.Connection) -> dict[str, list[Span]]:
            known = ((sink, state) for sink, _, state in db.execute(_AT, (since_ms,)))
            return spans_since(since_ms, known, db.execute(_AFTER, (since_ms,)))

        return await self._reader.read(read)

    async def left(self, sinks: Collection[str]) -> Mapping[str, LeftState]:
        def read(db: sqlite3.Connection) -> dict[str, LeftState]:
            rows = {sink: db.execute(_LEFT, (sink,)).fetchone() for sink in sinks}
            return {sink: _left_state(*row) for sink, row in rows.items() if row is not None}

        return await self._shared.leaser.read(read)


def _left_state(state: State, since_ms: int, was_parked: int) -> LeftState:
    return LeftState(state, since_ms, bool(was_parked))
