"""The numbers of the events that a selection can match, and their receipts in SQL."""

from functools import partial

from relay.core.event import KINDS
from relay.store import seq_range as ranges
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3

_ENDS = "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
_RECEIVED = "SELECT received_at FROM events WHERE seq >= ? ORDER BY seq LIMIT 1"
_LAST = """
SELECT max(last_at) FROM totals
WHERE (kind GLOB ?1 OR kind = 'other' AND ?2) AND (?3 IS NULL OR source = ?3)
"""


def seq_range(db: sqlite3.Connection, selection: Selection) -> range:
    """Return the numbers of all events that the selection can match, and of others."""
    first, last = db.execute(_ENDS).fetchone()
    return ranges.seq_range(
        selection,
        range(0) if first is None else range(first, last + 1),
        received_ms=partial(received_ms, db),
        newest_ms=partial(_newest_ms, db),
    )


def received_ms(db: sqlite3.Connection, seq: int) -> int | None:
    """Return the receipt of the first event from a number on."""
    row = db.execute(_RECEIVED, (seq,)).fetchone()
    return None if row is None else int(row[0])


def _newest_ms(db: sqlite3.Connection, kind: str, source: str | None) -> int | None:
    newest: int | None = db.execute(_LAST, (kind, kind not in KINDS, source)).fetchone()[0]
    return newest
