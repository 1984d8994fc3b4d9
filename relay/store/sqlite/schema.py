"""Schema migrations: each file in `migrations/` runs once, in order, in a transaction."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

from relay.core.errors import StoreBroken, StoreTooNew
from relay.store.sqlite.driver import sqlite3

_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""


class Step(NamedTuple):
    """One migration: `0001_what_it_does.sql`."""

    number: int
    name: str
    sql: str


def steps() -> tuple[Step, ...]:
    """Return the migrations, ordered by number."""
    folder = files(__package__) / "migrations"
    ordered = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=str)
    return tuple(
        Step(int(file.name[:4]), file.name, file.read_text(encoding="utf-8")) for file in ordered
    )


def migrate(db: sqlite3.Connection, *, now_ms: int) -> int:
    """Migrate the schema and return its number.

    Raises StoreTooNew, without a change, for the store of a newer relay, and StoreBroken for a
    database of another program.
    """
    known = steps()
    if _is_foreign(db):
        raise StoreBroken(f"{_file(db)} is a database of another program")
    db.execute(_TABLE)
    current: int = db.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0]
    newest = known[-1].number
    if current > newest:
        raise StoreTooNew(
            f"{_file(db)}: its schema is number {current}, this relay knows up to {newest}: "
            "run the relay that wrote it, or a newer one"
        )
    for step in known:
        if step.number > current:
            _apply(db, step, now_ms)
    return newest


def _file(db: sqlite3.Connection) -> str:
    return str(db.execute("PRAGMA database_list").fetchone()[2])


def _is_foreign(db: sqlite3.Connection) -> bool:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(tables) and "migrations" not in tables


def _apply(db: sqlite3.Connection, step: Step, now_ms: int) -> None:
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
