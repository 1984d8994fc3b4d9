"""Whether a stored body is the one that was received: the store keeps its SHA-256 beside it."""

import hashlib
from collections.abc import Iterator

from relay.store.sqlite.driver import sqlite3

STEP_ROWS = 500
"""Bodies read in one go, so that no long reading holds back the log."""

_READ = """
SELECT {key}, {name}, digest, body FROM {table}
WHERE {key} > ? AND body IS NOT NULL ORDER BY {key} LIMIT ?
"""
_EVENT = "'event ' || id || ' of source ' || source"
_UNREADABLE = (
    "'unreadable request ' || lower(substr(hex(digest), 1, 12)) || ' of source ' || source"
)
_SHELVES = (
    _READ.format(table="events", key="seq", name=_EVENT),
    _READ.format(table="unreadable", key="rowid", name=_UNREADABLE),
)
_ADVICE = "its stored body is damaged and goes to no sink; ask the sender for it, or a backup"


def digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def is_damaged(body: bytes | None, taken: bytes) -> bool:
    """Whether the body differs from the one that was received; None has been forgotten."""
    return body is not None and digest(body) != taken


def damaged(db: sqlite3.Connection) -> tuple[str, ...]:
    """Read all bodies; return a fault for each damaged one, with the next step."""
    return tuple(f"{name}: {_ADVICE}" for shelf in _SHELVES for name in _on(db, shelf))


def _on(db: sqlite3.Connection, shelf: str) -> Iterator[str]:
    last: int | None = 0
    while last is not None:
        rows = db.execute(shelf, (last, STEP_ROWS))
        last = None
        for key, name, taken, body in rows:
            last = key
            if is_damaged(body, taken):
                yield name
