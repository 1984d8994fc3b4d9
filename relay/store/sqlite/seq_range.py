"""The numbers of the events that a selection can match, from its times and its kind."""

from relay.core.event import KINDS
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3

MARGIN_MS = 3_600_000
"""How far the clock may have been set back: sources do not tolerate as much, by far."""

_ENDS = "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
_RECEIVED = "SELECT received_at FROM events WHERE seq >= ? ORDER BY seq LIMIT 1"
_LAST = """
SELECT max(last_at) FROM totals
WHERE (kind GLOB ?1 OR kind = 'other' AND ?2) AND (?3 IS NULL OR source = ?3)
"""


def seq_range(db: sqlite3.Connection, selection: Selection) -> range:
    """Return the numbers of all events that the selection can match, and of others."""
    first, last = db.execute(_ENDS).fetchone()
    if first is None:
        return range(0)
    start, stop = first, last + 1
    if selection.before is not None:
        stop = min(stop, selection.before)
    if selection.kind is not None:
        newest_ms = _newest_ms(db, selection.kind, selection.source)
        stop = start if newest_ms is None else _first(db, newest_ms + MARGIN_MS + 1, start, stop)
    if selection.until_ms is not None:
        stop = _first(db, selection.until_ms + MARGIN_MS, start, stop)
    if selection.since_ms is not None:
        start = _first(db, selection.since_ms - MARGIN_MS, start, stop)
    return range(start, max(start, stop))


def received_ms(db: sqlite3.Connection, seq: int) -> int | None:
    """Return the receipt of the first event from a number on."""
    row = db.execute(_RECEIVED, (seq,)).fetchone()
    return None if row is None else int(row[0])


def _newest_ms(db: sqlite3.Connection, kind: str, source: str | None) -> int | None:
    """Return the receipt of the last event that may be of a kind; None if there never was one."""
    newest: int | None = db.execute(_LAST, (kind, kind not in KINDS, source)).fetchone()[0]
    return newest


def _first(db: sqlite3.Connection, ms: int, start: int, stop: int) -> int:
    """Return the number of the first event received then or later, by bisection."""
    while start < stop:
        middle = (start + stop) // 2
        received = received_ms(db, middle)
        if received is not None and received < ms:
            start = middle + 1
        else:
            stop = middle
    return start
