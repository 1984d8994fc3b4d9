"""Where a test's store is, on either engine: opened again and again, and read behind its back."""

import atexit
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import psycopg
from psycopg import sql

from relay.core.clock import Clock
from relay.core.config_values import Secret, Size
from relay.core.totals import Total
from relay.store import Store
from relay.store.postgres import store as postgres
from relay.store.postgres.fences import Fence
from relay.store.postgres.settings import PostgresSettings
from relay.store.sqlite import store as sqlite
from relay.store.sqlite.settings import SqliteSettings
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


class SqlitePlace(Place):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "relay.db"

    @asynccontextmanager
    async def open(
        self, clock: Clock, *, counted: Counted = _ignore, **settings: Any
    ) -> AsyncIterator[Store]:
        where = SqliteSettings(path=str(self.path), min_free=Size.parse("1B"), **settings)
        store = await sqlite.open_store(where, clock=clock, counted=counted)
        try:
            yield store
        finally:
            await store.close()

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
        with psycopg.connect(self.server.dsn, autocommit=True) as db:
            name = sql.Identifier(self.schema).as_string()
            cursor = db.execute(text.replace("relay.", f"{name}.").encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def drop(self) -> None:
        name = sql.Identifier(self.schema).as_string()
        self.rows(f"DROP SCHEMA IF EXISTS {name} CASCADE")


class PooledPlace(PostgresPlace):
    """A schema of its own, which the store reaches through PgBouncer in transaction mode."""

    def settings(self, **settings: Any) -> PostgresSettings:
        dsn = Secret(shared_pooler().dsn)
        return PostgresSettings(dsn=dsn, schema=self.schema, **settings)


@cache
def shared_pooler() -> PgBouncer:
    """Start a pooler for the first test; it ends with the process."""
    folder = TemporaryDirectory()
    pooler = PgBouncer(Path(folder.name), shared_server())
    atexit.register(folder.cleanup)
    atexit.register(pooler.kill)
    pooler.start()
    return pooler


@cache
def shared_server() -> PostgresServer:
    """Start a server for the first test; it ends with the process."""
    folder = TemporaryDirectory()
    server = PostgresServer(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    server.create()
    server.start()
    return server
