"""Retention in small steps: bodies of settled events are removed first, their ids much later.

A step finds its rows with a reader and removes them in a transaction that acknowledgements share.
It checks each row again there, because a replay may have opened a delivery in between.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from relay.store import StoreSettings
from relay.store.audience.reads import LAST_COUNTED
from relay.store.reconstructions import NAMED
from relay.store.retention import STEP_BYTES, STEP_ROWS, Keep, Round, Times
from relay.store.rows import within_bytes
from relay.store.sqlite.driver import Row, sqlite3

VACUUM_PAGES = 200
SPARE_SHARE = 8
"""Fraction of the file, 1 in this many, that stays free for new rows; the rest is given back."""

SPARE_PAGES = 256

_WITHOUT_OPEN_LOSS = "AND (e.lost_until IS NULL OR e.acknowledged_at IS NOT NULL)"
_NAMING = f"AND json_array_length(e.report, '$.{NAMED}') > 0"
_SETTLED = """
NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.seq AND d.status = 'pending')
"""
_COUNTED = f"e.seq <= {LAST_COUNTED}"
"""Uncounted events stay until the audience has counted them."""

_OLD = f"""
SELECT e.rowid, {{size}} FROM {{table}} e
WHERE e.rowid >= ? AND e.rowid < ? AND {{is_old}} {{more}}
ORDER BY e.rowid LIMIT {STEP_ROWS}
"""
_STILL_SETTLED = f"SELECT 1 FROM events e WHERE e.seq = ? AND {_SETTLED}"
_ENDS = """
SELECT (SELECT min(rowid) FROM {table} WHERE rowid >= ?), (SELECT max(rowid) FROM {table})
"""
_DEAD_OF = "SELECT sink FROM deliveries WHERE event = ? AND status = 'dead'"
_SPACE = """
SELECT page_count, freelist_count, auto_vacuum
FROM pragma_page_count, pragma_freelist_count, pragma_auto_vacuum
"""
_INCREMENTAL = 2

Remove = Callable[[sqlite3.Connection, list[Row]], Counter[str]]


class RetentionStep(msgspec.Struct, frozen=True):
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
    keep: Keep
    size: str = "coalesce(length(e.body), 0)"


class Sweep:
    """Finds expired rows, phase by phase."""

    def __init__(self, settings: StoreSettings) -> None:
        times = Times.of(settings)
        with_body, settled = "AND e.body IS NOT NULL", f"AND {_SETTLED} AND {_COUNTED}"
        self._phases = (
            _Phase("events", f"{with_body} {settled}", _remove_bodies, times.bodies),
            _Phase("events", settled, _remove_events, times.ids),
            _Phase("unreadable", with_body, _remove_unreadable_bodies, times.unreadable_bodies),
            _Phase("unreadable", "", _deletion("unreadable"), times.ids),
            _Phase("absences", _WITHOUT_OPEN_LOSS, _deletion("absences"), times.absences, "0"),
            _Phase("audit", "", _deletion("audit"), times.audit, "0"),
            _Phase("reconciliations", _NAMING, _forget_names, times.reports, "length(e.report)"),
        )
        self._round = Round(len(self._phases))

    def find(self, db: sqlite3.Connection, *, now_ms: int) -> RetentionStep:
        """Find the next expired rows; the last step of a round has `more` False."""
        if self._round.is_over:
            step = find_space(db)
            if not step.more:
                self._round.begin()
            return step
        phase = self._phases[self._round.phase]
        ends = db.execute(_ENDS.format(table=phase.table), (self._round.start,)).fetchone()
        window = self._round.window(*ends)
        if window is None:
            return RetentionStep([], phase.removal, more=True)
        sql = _OLD.format(
            size=phase.size, table=phase.table, is_old=_is_old(phase.keep), more=phase.more
        )
        values = (window.start, window.stop, *map(_glob, phase.keep.times(now_ms)))
        old = db.execute(sql, values).fetchall()
        rows = [row[:1] for row in within_bytes(old, STEP_BYTES, lambda row: row[1])]
        self._round.looked(window, [key for key, _ in old], [key for (key,) in rows])
        return RetentionStep(rows, phase.removal, more=True)


def _is_old(keep: Keep) -> str:
    """Return the condition for the values of `Keep.times`."""
    if not keep.kinds:
        return f"e.{keep.since} < ?"
    cases = " ".join(["WHEN e.kind GLOB ? THEN ?"] * len(keep.kinds))
    return f"e.{keep.since} < CASE {cases} ELSE ? END"


def _glob(value: str | int) -> str | int:
    """SQLite writes `[^a]` for `[!a]`."""
    return value.replace("[!", "[^") if isinstance(value, str) else value


def find_space(db: sqlite3.Connection) -> RetentionStep:
    """Find pages to give back; a step without rows and `more` if there are few enough."""
    pages, free, mode = db.execute(_SPACE).fetchone()
    if mode == _INCREMENTAL and free > max(SPARE_PAGES, pages // SPARE_SHARE):
        return RetentionStep([(VACUUM_PAGES,)], _shrink, more=True)
    return RetentionStep([], _shrink, more=False)


def steps_of_space(db: sqlite3.Connection) -> int:
    """Return the number of steps that give all free pages back."""
    _, free, _ = db.execute(_SPACE).fetchone()
    return -(-int(free) // VACUUM_PAGES)


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


def _forget_names(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    sql = f"UPDATE reconciliations SET report = json_remove(report, '$.{NAMED}') WHERE id = ?"
    db.executemany(sql, rows)
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
