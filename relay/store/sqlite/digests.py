"""Detection of damaged bodies, by the SHA-256 that is stored with each."""

from collections.abc import Iterator

from relay.store.integrity import DAMAGED_BODY
from relay.store.rows import is_damaged
from relay.store.sqlite.driver import sqlite3

STEP_ROWS = 500
"""Bodies per query: a long read transaction would keep the log from being truncated."""

_READ = """
SELECT {key}, {name}, digest, body FROM {table}
WHERE {key} > ? AND {key} <= ? AND body IS NOT NULL ORDER BY {key} LIMIT ?
"""
_LAST = "SELECT coalesce(max({key}), 0) FROM {table}"
_EVENT = "'event ' || id || ' of source ' || source"
_UNREADABLE = (
    "'unreadable request ' || lower(substr(hex(digest), 1, 12)) || ' of source ' || source"
)
_TABLES = (("events", "seq", _EVENT), ("unreadable", "rowid", _UNREADABLE))


def damaged(db: sqlite3.Connection) -> tuple[str, ...]:
    """Read all bodies that are stored by now; return a fault for each damaged one."""
    return tuple(
        f"{name}: {DAMAGED_BODY}"
        for table, key, title in _TABLES
        for name in _damaged(db, table, key, title)
    )


def _damaged(db: sqlite3.Connection, table: str, key: str, name: str) -> Iterator[str]:
    query = _READ.format(table=table, key=key, name=name)
    (end,) = db.execute(_LAST.format(table=table, key=key)).fetchone()
    last: int | None = 0
    while last is not None:
        rows = db.execute(query, (last, end, STEP_ROWS))
        last = None
        for number, title, received, body in rows:
            last = number
            if is_damaged(body, received):
                yield title
