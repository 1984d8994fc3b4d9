"""The way to a store's database, which a reload may change while its connections are in use.

A connection looks up the DSN when it connects, so that a new password reaches all of them at once.
Work on an old one ends there, because a commit that is cut off would be in doubt.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, Self, TypeVar
from weakref import WeakSet

from relay.store.postgres.driver import Database, psycopg
from relay.store.postgres.errors import startup_error
from relay.store.postgres.settings import PostgresSettings

T = TypeVar("T")


class Moves(Protocol):
    """A connection that looks at the DSN when it connects."""

    def move(self) -> None:
        """Leave a server of another DSN once what runs there has ended."""
        ...


class Access:
    """The DSN and the schema of a store; its connections follow a change of the DSN."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self._connections: WeakSet[Moves] = WeakSet()

    @classmethod
    def of(cls, settings: PostgresSettings) -> Self:
        return cls(settings.dsn.reveal(), settings.schema)

    def is_current(self, dsn: str) -> bool:
        return dsn == self.dsn

    def watch(self, connection: Moves) -> None:
        """Tell a connection of each change."""
        self._connections.add(connection)

    def connect(self) -> Database:
        """Return a new connection; raises CannotConnect."""
        return Database(self.dsn, self.schema)

    @asynccontextmanager
    async def changed(self, dsn: str, check: Callable[[Database], None]) -> AsyncIterator[None]:
        """Let all connections use another DSN, from the block on and unless that raises.

        One connection is passed to `check` before. Raises what that raises, and StoreError.
        """
        await asyncio.to_thread(tried, dsn, self.schema, check)
        before = self.dsn
        self._change(dsn)
        try:
            yield
        except BaseException:
            self._change(before)
            raise

    def _change(self, dsn: str) -> None:
        self.dsn = dsn
        for connection in tuple(self._connections):
            connection.move()


def tried(dsn: str, schema: str, work: Callable[[Database], T]) -> T:
    """Run work on a connection of its own; raises StoreError."""
    try:
        database = Database(dsn, schema)
        try:
            return work(database)
        finally:
            database.close()
    except psycopg.Error as error:
        raise startup_error(error) from None
