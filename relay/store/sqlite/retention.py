"""Retention in small steps: bodies of settled events are removed first, their ids much later.

A step finds its rows with a reader and removes them in a transaction that acknowledgements share.
It checks each row again there, because a replay may have opened a delivery in between.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from relay.store import StoreSettings
from relay.store.rows import within_bytes
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import Row, sqlite3

STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits per transaction; removed data is overwritten, so that bytes take time too."""

SCAN_ROWS = 5000
"""Rows scanned per step, because leases wait for the same reader."""

VACUUM_PAGES = 200
SPARE_SHARE = 8
"""Fraction of the file, 1 in this many, that stays free for new rows; the rest is given back."""

SPARE_PAGES = 256

AUDIT_MS = 400 * 86_400_000
"""Retention of the audit log: a year and some time to review it."""

_WITHOUT_OPEN_LOSS = "AND (e.lost_until IS NULL OR e.acknowledged_at IS NOT NULL)"
_SETTLED = """
NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.seq AND d.status = 'pending')
"""
_COUNTED = f"e.seq <= {COUNTED_TO}"
"""Uncounted events stay until the audience has counted them."""

_OLD = f"""
SELECT e.rowid, {{size}} FROM {{table}} e
WHERE e.rowid >= ? AND e.rowid < ? AND {{is_old}} {{more}}
ORDER BY e.rowid LIMIT {STEP_ROWS}
"""
_STILL_SETTLED = f"SELECT 1 FROM events e WHERE e.seq = ? AND {_SETTLED}"
_FIRST = "SELECT min(rowid) FROM {table} WHERE rowid >= ?"
_DEAD_OF = "SELECT sink FROM deliveries WHERE event = ? AND status = 'dead'"
_SPACE = """
SELECT page_count, freelist_count, auto_vacuum
FROM pragma_page_count, pragma_freelist_count, pragma_auto_vacuum
"""
_INCREMENTAL = 2

Remove = Callable[[sqlite3.Connection, list[Row]], Counter[str]]


@dataclass(frozen=True, slots=True)
class Step:
    """Rows to remove in one transaction; `more` if another step may follow at once."""

    rows: list[Row]
    removal: Remove
    more: bool

    def remove(self, db: sqlite3.Connection) -> Counter[str]:
        """Remove the rows; return the numbers of removed dead letters by sink."""
        return self.removal(db, self.rows)


class _Phase(NamedTuple):
    table: str
    more: str
    removal: Remove
    keep: "_Keep"
    size: str = "coalesce(length(e.body), 0)"


class _Keep(NamedTuple):
    """Retention times: of the first glob that matches a row's kind, else of all others."""

    kinds: tuple[tuple[str, int], ...]
    others_ms: int
    since: str = "received_at"

    def is_old(self) -> str:
        """Return the condition for the values of `times`."""
        if not self.kinds:
            return f"e.{self.since} < ?"
        cases = " ".join(["WHEN e.kind GLOB ? THEN ?"] * len(self.kinds))
        return f"e.{self.since} < CASE {cases} ELSE ? END"

    def times(self, now_ms: int) -> list[str | int]:
        times: list[str | int] = []
        for glob, keep_ms in self.kinds:
            times += [glob, now_ms - keep_ms]
        return [*times, now_ms - self.others_ms]


class Sweep:
    """Goes over the store in rounds, some rows at a time, oldest first."""

    def __init__(self, settings: StoreSettings) -> None:
        rest, ids = _Keep((), settings.payload_retention), _Keep((), settings.dedupe_retention)
        bodies = _Keep(_by_kind(settings), settings.payload_retention)
        absences, audit = ids._replace(since="to_at"), _Keep((), AUDIT_MS, "begun_at")
        with_body, settled = "AND e.body IS NOT NULL", f"AND {_SETTLED} AND {_COUNTED}"
        self._phases = (
            _Phase("events", f"{with_body} {settled}", _remove_bodies, bodies),
            _Phase("events", settled, _remove_events, ids),
            _Phase("unreadable", with_body, _remove_unreadable_bodies, rest),
            _Phase("unreadable", "", _deletion("unreadable"), ids),
            _Phase("absences", _WITHOUT_OPEN_LOSS, _deletion("absences"), absences, size="0"),
            _Phase("audit", "", _deletion("audit"), audit, size="0"),
        )
        self._phase = 0
        self._from = 0

    def find(self, db: sqlite3.Connection, *, now_ms: int) -> Step:
        """Find the next expired rows; the last step of a round has `more` False."""
        if self._phase == len(self._phases):
            step = find_space(db)
            if not step.more:
                self._phase = 0
            return step
        phase = self._phases[self._phase]
        first = db.execute(_FIRST.format(table=phase.table), (self._from,)).fetchone()[0]
        if first is None:
            self._phase += 1
            self._from = 0
            return Step([], phase.removal, more=True)
        sql = _OLD.format(
            size=phase.size, table=phase.table, is_old=phase.keep.is_old(), more=phase.more
        )
        end = first + SCAN_ROWS
        old = db.execute(sql, (first, end, *phase.keep.times(now_ms))).fetchall()
        rows = [row[:1] for row in within_bytes(old, STEP_BYTES, lambda row: row[1])]
        self._from = rows[-1][0] + 1 if len(rows) < len(old) or len(old) == STEP_ROWS else end
        return Step(rows, phase.removal, more=True)


def find_space(db: sqlite3.Connection) -> Step:
    """Find pages to give back; a step without rows and `more` if there are few enough."""
    pages, free, mode = db.execute(_SPACE).fetchone()
    if mode == _INCREMENTAL and free > max(SPARE_PAGES, pages // SPARE_SHARE):
        return Step([(VACUUM_PAGES,)], _shrink, more=True)
    return Step([], _shrink, more=False)


def _by_kind(settings: StoreSettings) -> tuple[tuple[str, int], ...]:
    """Return the globs, shortest time first; SQLite writes `[^a]` for `[!a]`."""
    ordered = sorted(settings.retention.items(), key=lambda item: item[1])
    return tuple((glob.replace("[!", "[^"), int(keep_ms)) for glob, keep_ms in ordered)


def _settled(db: sqlite3.Connection, rows: list[Row]) -> list[Row]:
    return [row for row in rows if db.execute(_STILL_SETTLED, row).fetchone()]


def _remove_bodies(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    rows = _settled(db, rows)
    db.executemany("UPDATE events SET body = NULL, headers = NULL WHERE seq = ?", rows)
    db.executemany("UPDATE attempts SET answer = '' WHERE event = ?", rows)
    return Counter()


def _remove_events(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    rows = _settled(db, rows)
    dead = Counter(sink for row in rows for (sink,) in db.execute(_DEAD_OF, row))
    db.executemany("DELETE FROM attempts WHERE event = ?", rows)
    db.executemany("DELETE FROM deliveries WHERE event = ?", rows)
    db.executemany("DELETE FROM events WHERE seq = ?", rows)
    return dead


def _remove_unreadable_bodies(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    db.executemany("UPDATE unreadable SET body = NULL, headers = NULL WHERE rowid = ?", rows)
    return Counter()


def _deletion(table: str) -> Remove:
    def delete(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
        db.executemany(f"DELETE FROM {table} WHERE rowid = ?", rows)
        return Counter()

    return delete


def _shrink(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    # SQLite frees one page per step of this statement, and Python makes only one step.
    for _ in range(rows[0][0]):
        db.execute("PRAGMA incremental_vacuum(1)")
    return Counter()
