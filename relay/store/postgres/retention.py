"""Retention in small steps: bodies of settled events are removed first, their ids much later.

One member at a time does a step. It locks the events, so that a replay that is opening a delivery
has either ended before the last look at them, or finds them gone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay.store import StoreSettings
from relay.store.audience.reads import COUNTED_TO
from relay.store.globs import regular_expression
from relay.store.postgres.audience_tables import claim
from relay.store.postgres.driver import Database
from relay.store.reconstructions import NAMED
from relay.store.retention import STEP_BYTES, STEP_ROWS, Keep, Round, Times
from relay.store.rows import within_bytes

_COUNTED = f"e.seq <= coalesce((SELECT value FROM relay.state WHERE name = '{COUNTED_TO}'), 0)"
_TURN = "retention"
"""Name of the state that the member locks whose turn it is."""

# Looked up for each event: a join with all pending deliveries would only suit a small backlog.
_PENDING = """
EXISTS (
    SELECT 1 FROM relay.deliveries d WHERE d.event = e.seq AND d.status = 'pending' OFFSET 0
)
"""
_WITHOUT_OPEN_LOSS = "AND (e.lost_until IS NULL OR e.acknowledged_at IS NOT NULL)"
_ENDS = """
SELECT (SELECT min({key}) FROM {table} WHERE {key} >= %s), (SELECT max({key}) FROM {table})
"""
_OLD = f"""
SELECT e.{{key}}, {{size}} FROM {{table}} e
WHERE e.{{key}} >= %s AND e.{{key}} < %s AND {{is_old}} {{more}}
ORDER BY e.{{key}} LIMIT {STEP_ROWS}
"""
_LOCK = """
SELECT seq FROM relay.events WHERE seq = ANY(%b::bigint[]) ORDER BY seq FOR UPDATE SKIP LOCKED
"""
# In a statement of its own, which sees what was committed before the lock.
_SETTLED = f"SELECT e.seq FROM relay.events e WHERE e.seq = ANY(%b::bigint[]) AND NOT {_PENDING}"
_BODIES = """
UPDATE relay.events SET body = NULL, headers = NULL WHERE seq = ANY(%b::bigint[])
"""
_ANSWERS = """
UPDATE relay.attempts SET answer = '' WHERE event = ANY(%b::bigint[]) AND answer <> ''
"""
_UNREADABLE_BODIES = """
UPDATE relay.unreadable SET body = NULL, headers = NULL WHERE number = ANY(%b::bigint[])
"""
_NAMING = f"AND json_array_length(e.report::json -> '{NAMED}') > 0"
_NAMES = f"""
UPDATE relay.reconciliations SET report = (report::jsonb - '{NAMED}')::text
WHERE id = ANY(%b::bigint[])
"""
_EVENTS = (
    "DELETE FROM relay.attempts WHERE event = ANY(%b::bigint[])",
    "DELETE FROM relay.deliveries WHERE event = ANY(%b::bigint[])",
    "DELETE FROM relay.events WHERE seq = ANY(%b::bigint[])",
)

Remove = Callable[[Database, Sequence[int]], None]


class _Phase(NamedTuple):
    table: str
    key: str
    more: str
    remove: Remove
    keep: Keep
    size: str = "coalesce(octet_length(e.body), 0)"


class Sweep:
    """Removes expired rows, phase by phase."""

    def __init__(self, settings: StoreSettings) -> None:
        times = Times.of(settings)
        with_body = "AND e.body IS NOT NULL"
        settled = f"AND NOT {_PENDING} AND {_COUNTED}"
        events, unreadable = ("relay.events", "seq"), ("relay.unreadable", "number")
        absences, audit = ("relay.absences", "id"), ("relay.audit", "id")
        runs = ("relay.reconciliations", "id")
        no_bodies = _running(_UNREADABLE_BODIES)
        self._phases = (
            _Phase(*events, f"{with_body} {settled}", _remove_bodies, times.bodies),
            _Phase(*events, settled, _remove_events, times.ids),
            _Phase(*unreadable, with_body, no_bodies, times.unreadable_bodies),
            _Phase(*unreadable, "", _deletion(*unreadable), times.ids),
            _Phase(*absences, _WITHOUT_OPEN_LOSS, _deletion(*absences), times.absences, "0"),
            _Phase(*audit, "", _deletion(*audit), times.audit, "0"),
            _Phase(*runs, _NAMING, _running(_NAMES), times.reports, "octet_length(e.report)"),
        )
        self._round = Round(len(self._phases))

    def step(self, db: Database, *, now_ms: int) -> bool:
        """Remove the next expired rows; False at the end of a round, and in another's turn."""
        if claim(db, _TURN) is None:
            return False
        if self._round.is_over:
            self._round.begin()
            return False
        phase = self._phases[self._round.phase]
        sql = _ENDS.format(table=phase.table, key=phase.key)
        (ends,) = db.execute(sql, (self._round.start,)).fetchall()
        window = self._round.window(*ends)
        if window is not None:
            rows = _find(db, phase, window, now_ms)
            taken = [key for key, _ in within_bytes(rows, STEP_BYTES, lambda row: row[1])]
            if taken:
                phase.remove(db, taken)
            self._round.looked(window, [key for key, _ in rows], taken)
        return True


def _find(db: Database, phase: _Phase, window: range, now_ms: int) -> list[tuple[int, int]]:
    sql = _OLD.format(
        key=phase.key,
        size=phase.size,
        table=phase.table,
        is_old=_is_old(phase.keep),
        more=phase.more,
    )
    times = map(_expression, phase.keep.times(now_ms))
    return [(key, size) for key, size in db.execute(sql, (window.start, window.stop, *times))]


def _is_old(keep: Keep) -> str:
    """Return the condition for the values of `Keep.times`."""
    if not keep.kinds:
        return f"e.{keep.since} < %s"
    cases = " ".join(["WHEN e.kind ~ %s THEN %s"] * len(keep.kinds))
    return f"e.{keep.since} < CASE {cases} ELSE %s END"


def _expression(value: str | int) -> str | int:
    return regular_expression(value) if isinstance(value, str) else value


def _settled(db: Database, events: Sequence[int]) -> list[int]:
    """Lock the events, and return those that still have no pending delivery."""
    locked = [seq for (seq,) in db.execute(_LOCK, (list(events),))]
    return [seq for (seq,) in db.execute(_SETTLED, (locked,))]


def _remove_bodies(db: Database, events: Sequence[int]) -> None:
    settled = _settled(db, events)
    db.execute(_BODIES, (settled,))
    db.execute(_ANSWERS, (settled,))


def _remove_events(db: Database, events: Sequence[int]) -> None:
    settled = _settled(db, events)
    for sql in _EVENTS:
        db.execute(sql, (settled,))


def _deletion(table: str, key: str) -> Remove:
    return _running(f"DELETE FROM {table} WHERE {key} = ANY(%b::bigint[])")


def _running(sql: str) -> Remove:
    def remove(db: Database, keys: Sequence[int]) -> None:
        db.execute(sql, (list(keys),))

    return remove
