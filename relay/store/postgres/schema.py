"""Schema migrations: each file in `migrations/` runs once, in order, under a lock."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

from relay.core.errors import StoreTooNew
from relay.store.postgres.driver import Database

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('relay:migrate:' || %s, 0))"
_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_TABLE = """
CREATE TABLE IF NOT EXISTS relay.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at bigint NOT NULL
)
"""
_CURRENT = "SELECT coalesce(max(number), 0) FROM relay.migrations"
_RECORD = "INSERT INTO relay.migrations VALUES (%s, %s, %s, %s)"


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


def migrate(db: Database, schema: str, *, now_ms: int) -> int:
    """Create or migrate the schema in one transaction, and return its number.

    Relays that start together wait for each other.
    Raises StoreTooNew, without a change, for the schema of a newer relay.
    """
    known = steps()
    with db.transaction():
        db.execute(_LOCK, (schema,))
        if db.execute(_EXISTS, (schema,)).fetchone() is None:
            db.create_schema()
        db.execute(_TABLE)
        row = db.execute(_CURRENT).fetchone()
        current = 0 if row is None else int(row[0])
        if current > known[-1].number:
            raise StoreTooNew(
                f"the schema {schema} is number {current}, this relay knows up to "
                f"{known[-1].number}: run the relay that wrote it, or a newer one"
            )
        for step in known:
            if step.number > current:
                db.run_script(step.sql)
                digest = hashlib.sha256(step.sql.encode()).hexdigest()
                db.execute(_RECORD, (step.number, step.name, digest, now_ms))
    return known[-1].number
