"""psycopg in use on threads: connections that run whole functions, each on one of its own.

A function that has begun is never cancelled: a cancelled commit that waits for a standby would
count as a success that no standby has.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeVar

import psycopg
from psycopg import conninfo, sql

from relay.core.errors import StoreUnavailable
from relay.store.postgres.errors import classify, error_name, is_connection_lost

__all__ = [
    "Connection",
    "Cursor",
    "Database",
    "Pool",
    "Query",
    "Row",
    "Steps",
    "parse",
    "psycopg",
]

Row = tuple[Any, ...]
Cursor = psycopg.Cursor[Row]
T = TypeVar("T")

_CONNECT_TIMEOUT_S = 5
"""For each host; libpq's own default is to wait for ever."""
DOUBTS = frozenset({"01000", "57P01"})
"""SQLSTATEs of the warnings that a wait for a standby was cut short."""
_SCHEMA = re.compile(r"\brelay\.")


class Query(NamedTuple):
    """A statement, with its values as `Database.execute` takes them."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] | None = None


Steps = Generator[Query, list[Row], T]
"""A write as its statements: each is yielded, its rows are sent back, and the result returned.

So it runs on a thread and on the event loop alike.
"""


class Database:
    """One connection; SQL is written for the schema `relay`, which the configured one replaces.

    Every name is qualified, because a pooler shares `search_path` between its clients.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        """Connect; raises psycopg.Error."""
        self._schema = schema
        self.is_listening = False
        self._psycopg: psycopg.Connection[Row] = psycopg.connect(
            completed(dsn), autocommit=True, prepare_threshold=None
        )
        try:
            row = self._psycopg.execute("SELECT pg_backend_pid()").fetchone()
        except BaseException:
            self._psycopg.close()
            raise
        # A pooler makes up the number that it tells its client.
        self.is_pooled = row is None or row[0] != self._psycopg.info.backend_pid
        if not self.is_pooled:
            self._psycopg.prepare_threshold = 0
        self.is_in_doubt = False
        """Whether a commit was reported as done that may be missing on the standby."""
        self._psycopg.add_notice_handler(self._noticed)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate in DOUBTS:
            self.is_in_doubt = True

    @property
    def is_usable(self) -> bool:
        return not self._psycopg.closed

    @property
    def server_version(self) -> int:
        """Return for example 150020 for 15.20."""
        return self._psycopg.info.server_version

    def execute(self, text: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Run one statement with `%s` or `%(name)s` in place of its values, `%b` for arrays.

        Arrays are sent in binary: as text they take the client 10 to 100 times as long.
        """
        return self._psycopg.execute(qualified(text, self._schema), values, binary=True)

    def perform(self, steps: Steps[T]) -> T:
        """Run the statements of a write; return its result."""
        try:
            query = next(steps)
            while True:
                query = steps.send(self.execute(*query).fetchall())
        except StopIteration as end:
            result: T = end.value
            return result

    def execute_all(self, text: str, values: Mapping[str, Any]) -> list[list[Row]]:
        """Run several statements in one message, as one transaction; return the rows of each."""
        with psycopg.ClientCursor(self._psycopg) as cursor:
            cursor.execute(qualified(text, self._schema), values)
            found = [cursor.fetchall() if cursor.description else []]
            while cursor.nextset():
                found.append(cursor.fetchall() if cursor.description else [])
            return found

    def executemany(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row, in one round trip."""
        with self._psycopg.cursor() as cursor:
            cursor.executemany(qualified(text, self._schema), rows)

    def copy_in(self, text: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Run `COPY ... FROM STDIN (FORMAT BINARY)` for columns of these types."""
        command = qualified(text, self._schema)
        with self._psycopg.cursor() as cursor, cursor.copy(command) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def copy_out(self, text: str, types: Sequence[str]) -> Iterator[Row]:
        """Yield the rows of `COPY ... TO STDOUT (FORMAT BINARY)` with columns of these types."""
        command = qualified(text, self._schema)
        with self._psycopg.cursor() as cursor, cursor.copy(command) as copy:
            copy.set_types(types)
            yield from copy.rows()

    def run_script(self, text: str) -> None:
        """Run several statements, in the current transaction."""
        with psycopg.ClientCursor(self._psycopg) as cursor:
            cursor.execute(qualified(text, self._schema))

    def create_schema(self) -> None:
        """Create the configured schema."""
        self._psycopg.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Run the block in a transaction: in the current one if there is one, else in its own."""
        if self.in_transaction:
            yield self
            return
        with self._psycopg.transaction():
            yield self

    @contextmanager
    def snapshot(self) -> Iterator[Self]:
        """Let all reads of the block see the store as of the first one."""
        with self._psycopg.transaction():
            self._psycopg.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield self

    @property
    def in_transaction(self) -> bool:
        return self._psycopg.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def listen(self) -> None:
        """Let the server tell what is notified for the schema, unless a pooler is in between."""
        if not self.is_listening and not self.is_pooled:
            self._psycopg.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._schema)))
            self.is_listening = True

    def notify(self, payload: str) -> None:
        """Tell all that listen for the schema."""
        self._psycopg.execute("SELECT pg_notify(%s, %s)", (self._schema, payload))

    def notifications(self) -> list[str]:
        """Return what others have notified by now."""
        if not self.is_listening:
            return []
        own = self._psycopg.info.backend_pid
        return [each.payload for each in self._psycopg.notifies(timeout=0) if each.pid != own]

    def duplicate_socket(self) -> socket.socket:
        """Return another socket of the connection, which the caller closes; raises OSError."""
        return socket.socket(fileno=os.dup(self._psycopg.fileno()))

    def hang_up(self) -> None:
        """Break the connection from another thread, which ends the wait for the server at once."""
        hang_up(self._psycopg)

    def close(self) -> None:
        self._psycopg.close()


class Connection:
    """A database of its own thread, connected anew after it was lost."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._thread = ThreadPoolExecutor(1, "postgres")
        self._database: Database | None = None
        self._is_closed = False

    async def run(self, work: Callable[[Database], T]) -> T:
        """Call `work` on the connection's thread; raises psycopg.Error and StoreUnavailable."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, work)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query, once more if the connection was lost; raises StoreUnavailable."""
        try:
            try:
                return await self.run(query)
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise
            return await self.run(query)
        except psycopg.Error as error:
            raise classify(error) or StoreUnavailable(
                f"the database cannot be read ({error_name(error)})"
            ) from None

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

    async def cut_off(self) -> None:
        """Close it, and end the statement that runs."""
        self.hang_up()
        await self.close()

    def hang_up(self) -> None:
        """Break the connection, so that what runs on it fails; the next one is a new one."""
        if (database := self._database) is not None:
            database.hang_up()

    async def close(self) -> None:
        """Close it after what has begun."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _run(self, work: Callable[[Database], T]) -> T:
        database = self._connected()
        try:
            return work(database)
        except psycopg.Error as error:
            # The server may have said that it ends the session without having closed it yet.
            if is_connection_lost(error):
                self._drop()
            raise

    def _connected(self) -> Database:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if self._database is not None and not self._database.is_usable:
            self._drop()
        if self._database is None:
            self._database = Database(self._dsn, self._schema)
        return self._database

    def _close(self) -> None:
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


class Pool(Connection):
    """Connections of one purpose: each call gets the one with the fewest calls before it."""

    def __init__(self, dsn: str, schema: str, *, size: int) -> None:
        self._connections = [Connection(dsn, schema) for _ in range(size)]
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


def parse(dsn: str) -> dict[str, str]:
    """Return the parameters of a DSN; raises ValueError, without its text."""
    try:
        return {key: str(value) for key, value in conninfo.conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError:
        message = (
            "is not in the form of libpq: "
            "expected keywords (host=... dbname=...) or a URI (postgresql://...)"
        )
        raise ValueError(message) from None


def completed(dsn: str) -> str:
    """Return the DSN with what the relay's connections need besides."""
    values: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    values.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
    values.setdefault("application_name", "relay")
    return conninfo.make_conninfo(**values)


def hang_up(connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row]) -> None:
    """Break a connection, which ends the wait for the server at once."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1024)
def qualified(text: str, schema: str) -> bytes:
    """Return SQL for the configured schema."""
    name = sql.Identifier(schema).as_string() + "."
    return _SCHEMA.sub(lambda _: name, text).encode()
