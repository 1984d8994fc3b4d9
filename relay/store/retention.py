"""What is forgotten and when: bodies of settled events first, their ids much later, in small steps.

A step finds its rows with a reader and removes them in a transaction that acknowledgements share.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.store import StoreSettings
from relay.store.driver import Row, sqlite3

STEP_ROWS = 100
"""Rows per transaction: a few milliseconds on a slow disk."""

VACUUM_PAGES = 200

_SETTLED = """
NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.seq AND d.status = 'pending')
"""
_OLD_EVENTS = f"""
SELECT e.seq FROM events e
WHERE e.seq > ? AND e.received_at < ? AND {_SETTLED} {{more}} ORDER BY e.seq LIMIT {STEP_ROWS}
"""
_OLD_UNREADABLE = f"""
SELECT rowid FROM unreadable
WHERE rowid > ? AND received_at < ? {{more}} ORDER BY rowid LIMIT {STEP_ROWS}
"""
_DEAD_OF = "SELECT sink FROM deliveries WHERE event = ? AND status = 'dead'"

Remove = Callable[[sqlite3.Connection, list[Row]], Counter[str]]


@dataclass(frozen=True, slots=True)
class Step:
    """Rows to remove in one transaction; `more` says whether another step may follow at once."""

    rows: list[Row]
    removal: Remove
    more: bool


class _Phase(NamedTuple):
    find: str
    removal: Remove
    keep_ms: int


class Sweep:
    """One round over the store after another, some rows at a time, oldest first."""

    def __init__(self, settings: StoreSettings) -> None:
        body, ids = settings.payload_retention, settings.dedupe_retention
        with_body = "AND body IS NOT NULL"
        self._phases = (
            _Phase(_OLD_EVENTS.format(more=with_body), _forget_bodies, body),
            _Phase(_OLD_EVENTS.format(more=""), _forget_events, ids),
            _Phase(_OLD_UNREADABLE.format(more=with_body), _forget_unreadable_bodies, body),
            _Phase(_OLD_UNREADABLE.format(more=""), _forget_unreadable, ids),
        )
        self._phase = 0
        self._after = 0

    def find(self, db: sqlite3.Connection, *, now_ms: int) -> Step:
        """Find the next rows whose time is over; the last step of a round has `more` False."""
        phase = self._phases[self._phase]
        rows = db.execute(phase.find, (self._after, now_ms - phase.keep_ms)).fetchall()
        if rows:
            self._after = rows[-1][0]
            return Step(rows, phase.removal, more=True)
        self._phase = (self._phase + 1) % len(self._phases)
        self._after = 0
        return Step(rows, phase.removal, more=self._phase != 0)


def remove(db: sqlite3.Connection, steps: Sequence[Step]) -> list[Counter[str]]:
    """Remove the rows of each step; return how many dead letters of each sink went with them."""
    return [step.removal(db, step.rows) if step.rows else Counter() for step in steps]


def _forget_bodies(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    db.executemany("UPDATE events SET body = NULL, headers = NULL WHERE seq = ?", rows)
    db.executemany("UPDATE attempts SET answer = '' WHERE event = ?", rows)
    _shrink(db)
    return Counter()


def _forget_events(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    dead = Counter(sink for row in rows for (sink,) in db.execute(_DEAD_OF, row))
    db.executemany("DELETE FROM attempts WHERE event = ?", rows)
    db.executemany("DELETE FROM deliveries WHERE event = ?", rows)
    db.executemany("DELETE FROM events WHERE seq = ?", rows)
    _shrink(db)
    return dead


def _forget_unreadable_bodies(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    db.executemany("UPDATE unreadable SET body = NULL, headers = NULL WHERE rowid = ?", rows)
    _shrink(db)
    return Counter()


def _forget_unreadable(db: sqlite3.Connection, rows: list[Row]) -> Counter[str]:
    db.executemany("DELETE FROM unreadable WHERE rowid = ?", rows)
    _shrink(db)
    return Counter()


def _shrink(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
