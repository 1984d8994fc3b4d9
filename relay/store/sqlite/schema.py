"""Schema migrations: each file in `migrations/` runs once, in order, in a transaction."""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.core.errors import StoreBroken, StoreFull
from relay.store.migrations import Migration, Schema, require_served, steps_of
from relay.store.sqlite.driver import sqlite3

_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""


_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
_REBUILDS_EVENTS = 15
"""Migration that copies the largest table, with all bodies."""
_ROOM = 3
"""Room for that, in sizes of the store: the copy, and in the log the copy and the overwritten
original."""

# Not by `importlib.resources`, which loads zipfile and a quarter of a MiB with it.
_FOLDER = Path(__file__).parent / "migrations"


def steps() -> tuple[Migration, ...]:
    """Return the migrations, ordered by number."""
    return steps_of(_FOLDER)


def migrate(
    db: sqlite3.Connection, *, now_ms: int, free_bytes: Callable[[], float] = lambda: math.inf
) -> int:
    """Migrate the schema and return its number.

    Raises, without a change, StoreTooNew for the store of a newer relay, StoreFull if there is no
    room, and StoreBroken for a database of another program.
    """
    known = steps()
    if _is_foreign(db):
        raise StoreBroken(f"{_file(db)} is a database of another program")
    db.execute(_TABLE)
    current: int = db.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0]
    newest = known[-1].number
    require_served(f"{_file(db)}: its schema", Schema(current, current), newest=newest)
    if current < _REBUILDS_EVENTS:
        _require_room(db, free_bytes())
    with _without_foreign_keys(db):
        for step in known:
            if step.number > current:
                _apply(db, step, now_ms)
    if current < newest:
        # The first acknowledgement would wait for it.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return newest


def _file(db: sqlite3.Connection) -> str:
    return str(db.execute("PRAGMA database_list").fetchone()[2])


def _require_room(db: sqlite3.Connection, free_bytes: float) -> None:
    (size,) = db.execute(_SIZE).fetchone()
    if free_bytes < _ROOM * size:
        raise StoreFull(
            f"{_file(db)}: its migration takes up to {_ROOM * size} bytes on its disk for a while, "
            f"and {free_bytes:.0f} are free: make room, or start the relay that wrote it"
        )


@contextmanager
def _without_foreign_keys(db: sqlite3.Connection) -> Iterator[None]:
    """A table to which others refer can then be replaced (sqlite.org/lang_altertable.html)."""
    (enforced,) = db.execute("PRAGMA foreign_keys").fetchone()
    db.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        db.execute(f"PRAGMA foreign_keys = {enforced}")


def _is_foreign(db: sqlite3.Connection) -> bool:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(tables) and "migrations" not in tables


def _apply(db: sqlite3.Connection, step: Migration, now_ms: int) -> None:
    digest = hashlib.sha256(step.sql.encode()).hexdigest()
    # `executescript` takes no parameters; our own file names and numbers need no quoting.
    record = (
        "INSERT INTO migrations (number, name, sha256, applied_at) "
        f"VALUES ({step.number}, '{step.name}', '{digest}', {now_ms});"
    )
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{step.sql}\n{record}\nCOMMIT;")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
