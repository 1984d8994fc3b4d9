"""Reconciliation runs in PostgreSQL; each belongs to the member that began it."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from relay.core.errors import NotReconciled
from relay.store.postgres import numbers
from relay.store.postgres.driver import Database
from relay.store.postgres.shared import PostgresRepository
from relay.store.reconstructions import NAMED, Place, Run, RunState

ALIVE_S = 30
"""Age of a member's last heartbeat from which on its runs count as cut off."""

_PLACE = "SELECT place, at FROM relay.reconciled_places WHERE source = %s"
_KEEP_PLACE = """
INSERT INTO relay.reconciled_places (source, place, at) VALUES (%s, %s, %s)
ON CONFLICT (source) DO UPDATE SET place = excluded.place, at = excluded.at
"""
_BEGIN = """
INSERT INTO relay.reconciliations (id, source, since, until, dry, begun_at, state, member)
OVERRIDING SYSTEM VALUE VALUES (
    %(id)s, %(source)s, %(since)s, %(until)s, %(dry)s, %(now)s, 'running', %(member)s
) ON CONFLICT DO NOTHING
"""
_END = """
UPDATE relay.reconciliations SET state = %s, ended_at = %s, report = %s WHERE id = %s
"""
_IS_CUT_OFF = f"""
state = 'running' AND member <> %(member)s AND NOT EXISTS (
    SELECT 1 FROM relay.members AS m
    WHERE m.id = r.member AND m.beat_at > clock_timestamp() - interval '{ALIVE_S} s'
)
"""
_COLUMNS = f"""
id, source, since, until, dry, begun_at, ended_at,
CASE WHEN {_IS_CUT_OFF} THEN 'failed' ELSE state END
"""
_CUT_OFF = f"""
UPDATE relay.reconciliations AS r SET state = 'failed'
WHERE source = %(source)s AND (({_IS_CUT_OFF}) OR (state = 'running' AND member = %(member)s))
"""
"""A member's own one is over as well: its end could not be written."""
_UNDER_WAY = """
SELECT id FROM relay.reconciliations WHERE source = %(source)s AND state = 'running'
"""
_RUN = f"SELECT {_COLUMNS}, report FROM relay.reconciliations AS r WHERE id = %(id)s"
_RUNS = f"""
SELECT {_COLUMNS}, (report::jsonb - '{NAMED}')::text FROM relay.reconciliations AS r
WHERE %(before)s::bigint IS NULL OR id < %(before)s ORDER BY id DESC LIMIT %(limit)s
"""


class Runs(PostgresRepository):
    """Stores the runs, and where the next one begins to read."""

    async def place(self, source: str) -> Place | None:
        row = await self._reader.read(lambda db: db.execute(_PLACE, (source,)).fetchone())
        return None if row is None else Place(*row)

    async def begin(
        self, source: str, *, since_ms: int, until_ms: int, dry_run: bool, now_ms: int
    ) -> Run:
        number = await numbers.draw(self._reader, "reconciliations_id_seq")
        values = {
            "id": number,
            "source": source,
            "since": since_ms,
            "until": until_ms,
            "dry": int(dry_run),
            "now": now_ms,
            "member": self._shared.member,
        }

        def begin(db: Database) -> tuple[Run | None, int | None]:
            db.execute(_CUT_OFF, values)
            db.execute(_BEGIN, values)
            begun = db.execute(_RUN, values).fetchone()
            other = db.execute(_UNDER_WAY, values).fetchone()
            return Run.of(begun) if begun else None, int(other[0]) if other else None

        run, other = await self._shared.background.transact(begin)
        if run is None:
            raise NotReconciled(f"run {other} of source {source} is under way on another relay")
        return run

    async def end(
        self,
        run: Run,
        state: RunState,
        *,
        report: Mapping[str, Any] | None,
        place: Place | None,
        now_ms: int,
    ) -> Run:
        # PostgreSQL's JSON has no NUL, which a title may hold.
        written = None if report is None else orjson.dumps(report).decode()
        text = None if written is None else written.replace(r"\u0000", r"\ufffd")

        def end(db: Database) -> Run:
            db.execute(_END, (state, now_ms, text, run.id))
            if place is not None:
                db.execute(_KEEP_PLACE, (run.source, *place))
            (row,) = db.execute(_RUN, {"id": run.id, "member": self._shared.member}).fetchall()
            return Run.of(row)

        return await self._shared.background.transact(end)

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Run]:
        values = {"before": before, "limit": limit, "member": self._shared.member}
        rows = await self._reader.read(lambda db: db.execute(_RUNS, values).fetchall())
        return [Run.of(row) for row in rows]

    async def one(self, number: int) -> Run | None:
        values = {"id": number, "member": self._shared.member}
        row = await self._reader.read(lambda db: db.execute(_RUN, values).fetchone())
        return None if row is None else Run.of(row)
