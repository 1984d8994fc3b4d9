"""Schema migrations: each file in `migrations/` runs once, in order, under a lock."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from relay.core.errors import StoreRefused
from relay.store.migrations import Migration, Schema, require_served, steps_of
from relay.store.postgres import server
from relay.store.postgres.driver import Database

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('relay:migrate:' || %s, 0))"
_TABLE = """
CREATE TABLE IF NOT EXISTS relay.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at bigint NOT NULL,
    oldest integer
)
"""
_ADD_OLDEST = "ALTER TABLE relay.migrations ADD COLUMN IF NOT EXISTS oldest integer"
_MIGRATED = "SELECT to_regclass('relay.migrations') IS NOT NULL"
# The first relays wrote no `oldest`, and their table may lack it.
FOUND = """
SELECT json_build_array(
    coalesce(max(number), 0), coalesce(max(coalesce((to_jsonb(m) ->> 'oldest')::int, number)), 0)
) FROM relay.migrations AS m
"""
"""The two numbers of a `Schema`."""
COPYING = "copying"
"""Name of the mark in `state` of a copy that is not whole."""
MARK = f"INSERT INTO relay.state VALUES ('{COPYING}', %s)"
UNMARK = f"DELETE FROM relay.state WHERE name = '{COPYING}'"
_MARKED = f"SELECT value FROM relay.state WHERE name = '{COPYING}'"
_RECORD = "INSERT INTO relay.migrations VALUES (%s, %s, %s, %s, %s)"
_FOLDER = Path(__file__).parent / "migrations"


def steps() -> tuple[Migration, ...]:
    """Return the migrations, ordered by number."""
    return steps_of(_FOLDER)


def migrate(db: Database, schema: str, *, now_ms: int) -> None:
    """Create or migrate the schema of a relay; raises what `prepare` raises.

    Also raises StoreRefused for a copy that is not whole.
    """
    with db.transaction():
        prepare(db, schema, now_ms=now_ms)
        _require_whole(db, schema)


def prepare(db: Database, schema: str, *, now_ms: int) -> None:
    """Create or migrate the schema in one transaction.

    Relays that start together wait for each other.
    Raises StoreTooNew for a schema that only newer relays serve and StoreRefused for a server that
    does not fit, without a change, and StoreUnavailable for a server that is no primary.
    """
    server.require(db)
    known = steps()
    with db.transaction():
        db.execute(_LOCK, (schema,))
        if not server.require_rights(db, schema):
            db.create_schema()
        # A role's own limit would end a long migration at each start.
        db.execute("SET LOCAL statement_timeout = 0")
        db.execute(_TABLE)
        current = _served(db, schema, known).number
        if not current:
            server.require_encoding(db)
        if current < known[-1].number:
            db.execute(_ADD_OLDEST)
        for step in known:
            if step.number > current:
                db.run_script(step.sql)
                digest = hashlib.sha256(step.sql.encode()).hexdigest()
                db.execute(_RECORD, (step.number, step.name, digest, now_ms, step.oldest))


def preview(db: Database, schema: str) -> str:
    """Return what a start would find and do here; raises what `migrate` raises, changes nothing."""
    server.require(db)
    version = f"PostgreSQL {server.version(db)}"
    if not server.require_rights(db, schema) or db.execute(_MIGRATED).fetchone() != (True,):
        server.require_encoding(db)
        return f"{version}; serve creates the schema {schema}"
    known = steps()
    current, newest = _served(db, schema, known).number, known[-1].number
    _require_whole(db, schema)
    what = "up to date" if current == newest else f"at {current}, serve migrates it to {newest}"
    if current > newest:
        what = f"at {current}, newer than {newest}, the newest of this relay, which serves it"
    return f"{version}; the schema {schema} is {what}"


def copying(db: Database) -> int | None:
    """Return the mark of a copy that is not whole."""
    row = db.execute(_MARKED).fetchone()
    return None if row is None else int(row[0])


def _require_whole(db: Database, schema: str) -> None:
    if copying(db) is not None:
        raise StoreRefused(
            f"the schema {schema} holds a copy that is not whole: "
            "run relay store copy again, or drop the schema"
        )


def found(db: Database) -> Schema:
    """Return the schema of a store that has one."""
    return Schema(*db.execute(FOUND).fetchall()[0][0])


def _served(db: Database, schema: str, known: Sequence[Migration]) -> Schema:
    """Return the schema; raises StoreTooNew."""
    current = found(db)
    require_served(f"the schema {schema}", current, newest=known[-1].number)
    return current
