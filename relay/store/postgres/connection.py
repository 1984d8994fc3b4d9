"""Connections that run whole functions, each on a thread of its own, and are made anew when lost.

They are also made anew once the DSN has changed, each when what it does has ended.

A function that has begun is never cancelled: a cancelled commit that waits for a standby would
count as a success that no standby has.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relay.core.errors import StoreUnavailable
from relay.store.postgres.access import Access
from relay.store.postgres.driver import Database, psycopg
from relay.store.postgres.errors import OutcomeUnknown, classify, error_name, is_connection_lost

T = TypeVar("T")


class Connection:
    """A database of its own thread, connected anew after it was lost or its DSN changed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._thread = ThreadPoolExecutor(1, "postgres")
        self._database: Database | None = None
        self._is_closed = False
        access.watch(self)

    async def run(self, work: Callable[[Database], T]) -> T:
        """Call `work` on the connection's thread; raises psycopg.Error and StoreUnavailable."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, work)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query as `read_again` does."""
        return await read_again(lambda: self.run(query))

    async def read_within(self, limit_s: float, query: Callable[[Database], T]) -> T | None:
        """Run a query like `read`, but end a statement that takes longer; then None."""

        def limited(database: Database) -> T | None:
            try:
                with database.snapshot():
                    # Of this transaction alone, because a pooler shares the session.
                    database.execute(f"SET LOCAL statement_timeout = {max(1, int(limit_s * 1000))}")
                    return query(database)
            except psycopg.errors.QueryCanceled:
                return None

        return await self.read(limited)

    @property
    def answers(self) -> int:
        """Number of the server's answers on the present connection."""
        return 0 if self._database is None else self._database.answers

    def move(self) -> None:
        """Leave a server of another DSN once what runs has ended."""
        if not self._is_closed:
            self._thread.submit(self._leave_outdated)

    async def cut_off(self) -> None:
        """Close it, and end the statement that runs."""
        self.hang_up()
        await self.close()

    def hang_up(self) -> None:
        """Break the connection, so that what runs on it fails; the next one is a new one."""
        if (database := self._database) is not None:
            database.hang_up()

    async def close(self) -> None:
        """Close it after the calls that came before."""
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        self._thread.shutdown(wait=False)

    def _run(self, work: Callable[[Database], T]) -> T:
        database = self._connected()
        try:
            return work(database)
        except (psycopg.Error, OutcomeUnknown) as error:
            # The server may have said that it ends the session without having closed it yet.
            if is_connection_lost(error):
                self._drop()
            raise

    def _connected(self) -> Database:
        self._leave_outdated()
        if self._database is not None and not self._database.is_usable:
            self._drop()
        if self._database is None:
            self._database = self._access.connect()
        return self._database

    def _leave_outdated(self) -> None:
        if self._database is not None and not self._access.is_current(self._database.dsn):
            self._drop()

    def _drop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


class Pool(Connection):
    """Connections of one purpose: each call gets the one with the fewest calls before it."""

    def __init__(self, access: Access, *, size: int) -> None:
        self._connections = [Connection(access) for _ in range(size)]
        self._calls = [0] * size

    async def run(self, work: Callable[[Database], T]) -> T:
        place = min(range(len(self._calls)), key=self._calls.__getitem__)
        self._calls[place] += 1
        try:
            return await self._connections[place].run(work)
        finally:
            self._calls[place] -= 1

    def hang_up(self) -> None:
        for each in self._connections:
            each.hang_up()

    async def close(self) -> None:
        for each in self._connections:
            await each.close()


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Read, once more if the connection was lost; raises StoreUnavailable."""
    try:
        try:
            return await read()
        except psycopg.Error as error:
            if not is_connection_lost(error):
                raise
        return await read()
    except psycopg.Error as error:
        raise classify(error) or StoreUnavailable(
            f"the database cannot be read ({error_name(error)})"
        ) from None
