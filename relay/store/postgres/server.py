"""The database of a store: where it is, and whether it fits, looked at without a change."""

import math
from typing import NamedTuple, Self

from relay.core.clock import Clock
from relay.core.errors import StoreRefused, StoreUnavailable
from relay.store import StoreWarning
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, parse
from relay.store.postgres.settings import PostgresSettings

OLDEST = 13
"""The oldest server, by its major version."""

MEASURE_INTERVAL_S = 10.0

_STATE = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'"
_SCHEMA = """
SELECT current_user::text, current_database()::text,
    has_database_privilege(current_database(), 'CREATE'),
    (SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')
     FROM pg_namespace WHERE nspname = %s)
"""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r'
"""
_UNSAFE = """
SELECT name FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
ORDER BY name
"""


def location(settings: PostgresSettings) -> str:
    """Return schema, database and hosts; the user and all else of the DSN stay out."""
    values = parse(settings.dsn.reveal())
    hosts = values.get("host") or values.get("hostaddr") or "the local socket"
    database = values.get("dbname") or values.get("user") or "of the user's name"
    return f"schema {settings.schema} of the database {database} at {hosts}"


def require(db: Database) -> None:
    """Raise StoreRefused for a server that is too old, and StoreUnavailable for a read-only one."""
    if db.server_version < OLDEST * 10_000:
        raise StoreRefused(
            f"the server is PostgreSQL {version(db)}: this relay needs {OLDEST} or newer"
        )
    row = db.execute(_STATE).fetchone()
    if row is not None and any(row):
        state = "in recovery, as a replica is" if row[0] else "set to read-only transactions"
        raise StoreUnavailable(
            f"the server is {state}: name the primary, or every host and "
            "target_session_attrs=read-write, in store.dsn"
        )


def require_rights(db: Database, schema: str) -> bool:
    """Whether the schema is there; raises StoreRefused if the role may not use or create it."""
    ((user, database, may_create, may_use),) = db.execute(_SCHEMA, (schema,))
    if may_use is None and not may_create:
        raise StoreRefused(
            f"the schema {schema} is missing, and the role {user} may not create it in the "
            f'database {database}: run CREATE SCHEMA "{schema}" AUTHORIZATION "{user}" there'
        )
    if may_use is False:
        raise StoreRefused(
            f"the role {user} may not use and fill the schema {schema}: "
            f'run GRANT USAGE, CREATE ON SCHEMA "{schema}" TO "{user}"'
        )
    return may_use is not None


def version(db: Database) -> str:
    """Return the server's version, such as `15.20`."""
    major, minor = divmod(db.server_version, 10_000)
    return f"{major}.{minor}"


class Server(NamedTuple):
    """What a store shows of its server."""

    version: str
    warnings: tuple[StoreWarning, ...]

    @classmethod
    def of(cls, db: Database) -> Self:
        """Read it; a warning is a setting with which the server can lose what it has committed."""
        warnings = (
            StoreWarning("store.unsafe_server", {"reason": f"{name} is off", "advice": _ADVICE})
            for (name,) in db.execute(_UNSAFE)
        )
        return cls(version(db), tuple(warnings))


def size_bytes(db: Database, schema: str) -> int:
    """Return the size of all tables of a schema with their indexes."""
    row = db.execute(_SIZE, (schema,)).fetchone()
    return 0 if row is None else int(row[0])


class Size:
    """Size of all tables of a schema with their indexes, measured every few seconds."""

    def __init__(self, reader: Connection, schema: str, clock: Clock) -> None:
        self._reader = reader
        self._schema = schema
        self._clock = clock
        self._measured_s = -math.inf
        self._bytes = 0

    async def measure(self) -> int:
        """Return it in bytes; raises StoreUnavailable."""
        now_s = self._clock.monotonic()
        if now_s - self._measured_s > MEASURE_INTERVAL_S:
            self._bytes = await self._reader.read(lambda db: size_bytes(db, self._schema))
            self._measured_s = now_s
        return self._bytes


_ADVICE = "a crash of the server can lose acknowledged events; turn it on for this database"
