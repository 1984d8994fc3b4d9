"""A schema of PostgreSQL as the target of a copy: marked until the copy is whole."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from relay.core.errors import StoreBroken, StoreRefused
from relay.store.copying.tables import TABLES, CopiedTable
from relay.store.postgres import schema, server
from relay.store.postgres.driver import Database, Row, psycopg
from relay.store.postgres.errors import CannotConnect, classify, error_name, startup_error
from relay.store.postgres.settings import PostgresSettings

_TYPES = """
SELECT attname::text, typname::text FROM pg_attribute JOIN pg_type AS t ON t.oid = atttypid
WHERE attrelid = 'relay.{table}'::regclass AND attnum > 0 AND NOT attisdropped
"""
_COUNT = """
INSERT INTO relay.backlogs (sink, pending, dead, oldest_at)
SELECT d.sink, count(*) FILTER (WHERE d.status = 'pending'),
    count(*) FILTER (WHERE d.status = 'dead'),
    min(e.received_at) FILTER (WHERE d.status = 'pending' AND d.replay IS NULL)
FROM relay.deliveries AS d JOIN relay.events AS e ON e.seq = d.event
GROUP BY d.sink
ON CONFLICT DO NOTHING
"""
_TEXT = "text"


class TargetSchema:
    """One schema, through one connection."""

    def __init__(self, db: Database, name: str) -> None:
        self._db = db
        self._name = name

    def begin(self, fingerprint: int, *, now_ms: int) -> None:
        """Create and mark the schema, or go on with a copy of the same store.

        Raises StoreRefused for a schema that holds anything else.
        """
        with self._db.transaction():
            schema.prepare(self._db, self._name, now_ms=now_ms)
            mark = schema.copying(self._db)
            if mark is None:
                self._require_empty()
                self._db.execute(schema.MARK, (fingerprint,))
            elif mark != fingerprint:
                raise StoreRefused(f"the schema {self._name} holds a copy of another store")

    def _require_empty(self) -> None:
        for table in TABLES:
            if self._db.execute(f"SELECT 1 FROM relay.{table.name} LIMIT 1").fetchone():
                raise StoreRefused(
                    f"the schema {self._name} is not empty, {table.name} has rows: "
                    "name another in store.schema, or drop it"
                )

    def last_key(self, table: CopiedTable) -> Row | None:
        """Return the last key that was copied; None for no row."""
        types = self._types(table)
        key = [_ordered(name, types[name]) for name in table.key]
        order = ", ".join(f"{name} DESC" for name in key)
        names = ", ".join(table.key)
        query = f"SELECT {names} FROM {_place(table)} ORDER BY {order} LIMIT 1"
        with self._unlimited():
            return self._db.execute(query).fetchone()

    def write(self, table: CopiedTable, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Add rows in one transaction."""
        types = self._types(table)
        text = f"COPY relay.{table.name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        try:
            with self._unlimited():
                self._db.copy_in(text, [types[name] for name in columns], rows)
        except psycopg.DataError as error:
            raise StoreRefused(
                f"the server refuses a row of {table.name} ({error_name(error)})"
            ) from None

    def rows(self, table: CopiedTable, columns: Sequence[str]) -> Iterator[Row]:
        """Yield all rows in the order of the key, without the mark."""
        types = self._types(table)
        order = ", ".join(_ordered(name, types[name]) for name in table.key)
        query = f"SELECT {', '.join(columns)} FROM {_place(table)} ORDER BY {order}"
        text = f"COPY ({query}) TO STDOUT (FORMAT BINARY)"
        with self._unlimited():
            yield from self._db.copy_out(text, [types[name] for name in columns])

    def number_from(self, table: CopiedTable, last: int) -> None:
        """Let the table number its next row beyond `last`."""
        query = "SELECT setval(pg_get_serial_sequence(%s, %s)::regclass, %s, true)"
        if last:
            sequence = f'"{self._name}".{table.name}'
            self._db.execute(query, (sequence, table.numbered, last))

    def finish(self) -> None:
        """Let a relay open the schema."""
        analyses = (f"ANALYZE relay.{table.name}" for table in TABLES)
        for text in (_COUNT, *analyses, schema.UNMARK):
            with self._unlimited():
                self._db.execute(text)

    @contextmanager
    def _unlimited(self) -> Iterator[None]:
        """Run statements in a transaction: a role's own time limit would end each long one."""
        with self._db.transaction():
            # Of this transaction alone, because a pooler shares the session.
            self._db.execute("SET LOCAL statement_timeout = 0")
            yield

    def _types(self, table: CopiedTable) -> dict[str, str]:
        return dict(self._db.execute(_TYPES.format(table=table.name)))


def _place(table: CopiedTable) -> str:
    """Return what stands after FROM: the rows that come from the source."""
    left_out = f" WHERE name <> '{schema.COPYING}'" if table.name == "state" else ""
    return f"relay.{table.name}{left_out}"


def _ordered(name: str, type_: str) -> str:
    """Return a column in SQLite's order, which compares texts by their bytes."""
    return f'{name} COLLATE "C"' if type_ == _TEXT else name


@contextmanager
def opened(settings: PostgresSettings) -> Iterator[TargetSchema]:
    """Connect for the block; raises StoreError."""
    try:
        db = Database(settings.dsn.reveal(), settings.schema)
        try:
            server.require(db)
            yield TargetSchema(db, settings.schema)
        finally:
            db.close()
    except CannotConnect as error:
        raise startup_error(error) from None
    except psycopg.Error as error:
        raise classify(error) or StoreBroken(
            f"the database refuses the copy: {type(error).__name__} ({error_name(error)})"
        ) from None
