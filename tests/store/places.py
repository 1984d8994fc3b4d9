"""Where a test's store is, on either engine: opened again and again, and read behind its back."""

import atexit
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
)
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import psycopg
from psycopg import sql

from relay.core.clock import Clock
from relay.core.config_values import Secret, Size
from relay.core.totals import Total
from relay.store import Store
from relay.store.postgres import opening as postgres
from relay.store.postgres.fences import Fence
from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite import opening as sqlite
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests import scratch
from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.server import PostgresServer

_numbers = count(1)

Counted = Callable[[Total], None]


def _ignore(_: Total) -> None:
    pass


class Place(ABC):
    """A store's place; what is in it goes with the test."""

    @abstractmethod
    def open(
        self, clock: Clock, *, counted: Counted = _ignore, **settings: Any
    ) -> AbstractAsyncContextManager[Store]:
        """Open it for the block, with keys of `[store]` that both engines have."""

    @abstractmethod
    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run SQL in which tables are named `relay.events` and values `%s`."""


@asynccontextmanager
async def opened(
    path: Path, clock: Clock, *, min_free: str = "1B", counted: Counted = _ignore, **settings: Any
) -> AsyncIterator[SqliteStore]:
    """Open the store in a file for the block, with keys of `[store]`."""
    where = SqliteSettings(path=str(path), min_free=Size.parse(min_free), **settings)
    store = await sqlite.open_store(where, clock=clock, counted=counted)
    try:
        yield store
    finally:
        await store.close()


class SqlitePlace(Place):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "relay.db"

    def open(
        self, clock: Clock, *, counted: Counted = _ignore, **settings: Any
    ) -> AbstractAsyncContextManager[SqliteStore]:
        return opened(self.path, clock, counted=counted, **settings)

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(text.replace("relay.", "").replace("%s", "?"), values).fetchall()


class OnlyRelay:
    """Fulfils `Fences` for a store that no other relay uses: it owns all sinks."""

    def holds(self, _: str) -> bool:
        return True

    def fence(self, _: str) -> None:
        return None

    def lost(self, sink: str, fence: Fence) -> None:
        raise AssertionError(f"{sink} has an owner beside {fence.holder}")


class PostgresPlace(Place):
    """A schema of its own, usually in the server that the tests of a process share."""

    def __init__(self, server: PostgresServer | None = None) -> None:
        self.server = server or shared_server()
        self.schema = f"relay {next(_numbers)}"

    @asynccontextmanager
    async def open(
        self, clock: Clock, *, counted: Counted = _ignore, **settings: Any
    ) -> AsyncIterator[Store]:
        where = self.settings(**settings)
        store = await postgres.open_store(where, clock=clock, counted=counted, fences=OnlyRelay())
        try:
            yield cast("Store", store)
        finally:
            await store.close()

    def settings(self, **settings: Any) -> PostgresSettings:
        return PostgresSettings(dsn=Secret(self.server.dsn), schema=self.schema, **settings)

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        name = sql.Identifier(self.schema).as_string()
        with self._connected() as db:
            cursor = db.execute(text.replace("relay.", f"{name}.").encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _connected(self) -> AbstractContextManager[psycopg.Connection]:
        if self.server is shared_server():
            return nullcontext(_shared_connection())
        return psycopg.connect(self.server.dsn, autocommit=True)

    def drop(self) -> None:
        name = sql.Identifier(self.schema).as_string()
        self.rows(f"DROP SCHEMA IF EXISTS {name} CASCADE")


_EMPTY = """
DO $$
DECLARE
    place text;
    filled text[] = '{{}}';
    has_rows boolean;
BEGIN
    FOR place IN
        SELECT oid::regclass FROM pg_class
        WHERE relnamespace = {name}::regnamespace AND relkind = 'r' AND relname <> 'migrations'
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', place) INTO has_rows;
        IF has_rows THEN
            filled = filled || place;
        END IF;
    END LOOP;
    IF filled <> '{{}}' THEN
        EXECUTE 'TRUNCATE ' || array_to_string(filled, ', ');
    END IF;
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
        FROM pg_sequences WHERE schemaname = {text} AND last_value IS NOT NULL;
END $$
"""
"""Leaves a schema as its migration does."""


class ReusedPlace(PostgresPlace):
    """A schema that tests use one after another: to make one takes longer than most tests.

    It suits those that change rows only, as all do that run on SQLite as well.
    """

    _spare: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.schema = self._spare.pop() if self._spare else self.schema

    def drop(self) -> None:
        """Empty it for the next test."""
        name = sql.Identifier(self.schema).as_string()
        if self.rows("SELECT 1 FROM pg_namespace WHERE nspname = %s", self.schema):
            values = {"name": sql.Literal(name), "text": sql.Literal(self.schema)}
            self.rows(sql.SQL(_EMPTY).format(**values).as_string())
            self._spare.append(self.schema)


class PooledPlace(ReusedPlace):
    """A schema that the store reaches through PgBouncer in transaction mode."""

    def settings(self, **settings: Any) -> PostgresSettings:
        dsn = Secret(shared_pooler().dsn)
        return PostgresSettings(dsn=dsn, schema=self.schema, **settings)


@cache
def _shared_connection() -> psycopg.Connection:
    """Connect once: a server's new process first has to learn of every table that it reads."""
    connection = psycopg.connect(shared_server().dsn, autocommit=True, prepare_threshold=None)
    atexit.register(connection.close)
    return connection


@cache
def shared_pooler() -> PgBouncer:
    """Start a pooler for the first test; it ends with the process."""
    pooler = PgBouncer(scratch.of_process(), shared_server())
    atexit.register(pooler.kill)
    pooler.start()
    return pooler


@cache
def shared_server() -> PostgresServer:
    """Start a server for the first test; it ends with the process."""
    server = PostgresServer(scratch.of_process())
    atexit.register(server.stop)
    server.create()
    server.start()
    return server
