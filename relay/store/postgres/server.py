"""The database of a store: where it is, and whether it fits, looked at without a change."""

import math
from typing import NamedTuple, Self
from uuid import UUID

from relay.core.clock import Clock
from relay.core.errors import StoreRefused, StoreUnavailable
from relay.store import StoreWarning
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, parse, psycopg
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.text import Encoding

OLDEST = 13
"""The oldest server, by its major version."""

MEASURE_INTERVAL_S = 10.0

_ENCODING = "UTF8"

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
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
    OR name = 'client_min_messages' AND setting IN ('error', 'fatal', 'panic')
    OR name = 'default_transaction_isolation' AND setting IN ('repeatable read', 'serializable')
ORDER BY name
"""
_IS_KNOWN = "SELECT EXISTS (SELECT 1 FROM relay.members WHERE id = %s)"
_NOT_PERMITTED = """
SELECT relname::text FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) AND CASE relkind
    WHEN 'r' THEN NOT (
        has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')
    )
    WHEN 'S' THEN NOT has_sequence_privilege(oid, 'USAGE')
END ORDER BY relname LIMIT 1
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


def require_encoding(db: Database) -> None:
    """Raise StoreRefused for a database in which no schema should begin."""
    if db.encoding.name != _ENCODING:
        raise StoreRefused(
            f"the database has the encoding {db.encoding.name}, which does not hold every event: "
            f"make another with CREATE DATABASE ... ENCODING '{_ENCODING}' TEMPLATE template0"
        )


class Identity(NamedTuple):
    """What no two databases have in common, unless one began as a copy of the other's files."""

    system: int | None
    """Of the server's files; None where the role may not ask."""
    database: int

    @classmethod
    def of(cls, db: Database) -> Self:
        try:
            ((system,),) = db.execute("SELECT system_identifier FROM pg_control_system()")
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
            system = None
        text = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
        ((database,),) = db.execute(text)
        return cls(system, database)

    def require(self, db: Database, schema: str, *, member: UUID) -> None:
        """Raise StoreError unless this is the same database, and the role may use its schema.

        `member` is a relay that has written there: a copy that is older than it lacks it.
        """
        require(db)
        if not require_rights(db, schema) or self != Identity.of(db):
            raise StoreRefused(_ELSEWHERE)
        for (name,) in db.execute(_NOT_PERMITTED, (schema,)):
            raise StoreRefused(
                f"the role may not read and write {name} in the schema {schema}: make it a member "
                "of the role that owns it"
            )
        # A copy of the files has the same numbers of server and database, but not this process.
        if db.execute(_IS_KNOWN, (member,)).fetchone() != (True,):
            raise StoreRefused(_ELSEWHERE)


def version(db: Database) -> str:
    """Return the server's version, such as `15.20`."""
    major, minor = divmod(db.server_version, 10_000)
    return f"{major}.{minor}"


class Server(NamedTuple):
    """What a store shows of its server."""

    version: str
    encoding: Encoding
    identity: Identity
    warnings: tuple[StoreWarning, ...]

    @classmethod
    def of(cls, db: Database) -> Self:
        return cls(version(db), db.encoding, Identity.of(db), warnings(db))


def warnings(db: Database) -> tuple[StoreWarning, ...]:
    """Return what of the server keeps the relay from what it promises."""
    found = [
        _warning("store.unsafe_server", f"{name} is {setting}", _ADVICE[name])
        for name, setting in db.execute(_UNSAFE)
    ]
    if db.encoding.name != _ENCODING:
        reason = f"the database has the encoding {db.encoding.name}"
        found.append(_warning("store.encoding", reason, _ADVICE_ENCODING))
    return tuple(found)


def _warning(event: str, reason: str, advice: str) -> StoreWarning:
    return StoreWarning(event, {"reason": reason, "advice": advice}, needs_action=True)


def size_bytes(db: Database, schema: str) -> int:
    """Return the size of all tables of a schema with their indexes."""
    row = db.execute(_SIZE, (schema,)).fetchone()
    return 0 if row is None else int(row[0])


class SchemaSize:
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


_CRASH = "a crash of the server can lose acknowledged events; turn it on for this database"
_ADVICE = {
    "client_min_messages": (
        "a failover can lose acknowledged events, for the server does not say which commits its "
        "standby lacks; set it to warning for this role and database"
    ),
    "default_transaction_isolation": (
        "writes of several relays refuse each other, and senders get 503; set it to "
        "read committed for this role and database"
    ),
    "fsync": _CRASH,
    "full_page_writes": _CRASH,
    "synchronous_commit": _CRASH,
}
_ADVICE_ENCODING = (
    "events whose id or kind it cannot hold get 503, and other texts lose characters; move the "
    "schema to a database with UTF8, as docs/deployment.md says"
)
_ELSEWHERE = (
    "store.dsn names another database than the one in use: restore it, or restart the relay to "
    "change the database"
)
