"""Detection of damaged bodies, by the SHA-256 that is stored with each."""

from collections.abc import Iterator

from relay.store.integrity import DAMAGED_BODY
from relay.store.rows import is_damaged
from relay.store.sqlite.driver import sqlite3

STEP_ROWS = 500
"""Bodies per query: a long read transaction would keep the log from being truncated."""

_READ = """
SELECT {key}, {name}, digest, body FROM {table}
WHERE {key} > ? AND body IS NOT NULL ORDER BY {key} LIMIT ?
"""
_EVENT = "'event ' || id || ' of source ' || source"
_UNREADABLE = (
    "'unreadable request ' || lower(substr(hex(digest), 1, 12)) || ' of source ' || source"
)
_QUERIES = (
    _READ.format(table="events", key="seq", name=_EVENT),
    _READ.format(table="unreadable", key="rowid", name=_UNREADABLE),
)


def damaged(db: sqlite3.Connection) -> tuple[str, ...]:
    """Read all bodies; return a fault for each damaged one, with the next step."""
    return tuple(f"{name}: {DAMAGED_BODY}" for query in _QUERIES for name in _damaged(db, query))


def _damaged(db: sqlite3.Connection, query: str) -> Iterator[str]:
    last: int | None = 0
    while last is not None:
        rows = db.execute(query, (last, STEP_ROWS))
        last = None
        for key, name, received, body in rows:
            last = key
            if is_damaged(body, received):
                yield name
