"""psycopg in use: one blocking connection, with SQL for the configured schema.

It is libpq, so that every DSN works, and the second host is tried when the first one hangs.

No setting of a role or a database is trusted. What the SQL relies on is written into it, is sent
when connecting, or is read then and refused; a `SET` would stay with a pooler's next client.
"""

import os
import re
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.adapt import Dumper

from relay.store.postgres.dialect import fitted, translated
from relay.store.postgres.errors import CannotConnect
from relay.store.postgres.text import Encoding
from relay.store.sql import Sql

__all__ = [
    "Cursor",
    "Database",
    "Query",
    "Row",
    "Steps",
    "parse",
    "psycopg",
]

Row = tuple[Any, ...]
Cursor = psycopg.Cursor[Row]
T = TypeVar("T")

_DEFAULTS: dict[str, Any] = {
    "application_name": "relay",
    # Seconds for each host; libpq's own default is to wait for ever.
    "connect_timeout": 5,
    # A host that has vanished without a word is given up after 15 s, not after the kernel's hours:
    # in milliseconds while it acknowledges nothing, in seconds while its answer is awaited.
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""Where the DSN says nothing else; libpq ignores those of TCP on a Unix socket."""
_ALWAYS = {"client_encoding": "UTF8"}
"""Of each connection: a pooler carries it. Without it, text would arrive as bytes or be mangled."""
DOUBTS = frozenset({"01000", "57P01"})
"""SQLSTATEs of the warnings that a wait for a standby was cut short."""
_SCHEMA = re.compile(r"\brelay\.")
_PORTS = re.compile("[0-9,]*")


class Query(NamedTuple):
    """A statement, with its values as `Database.execute` takes them."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] | None = None


GREETING = Query("""
SELECT pg_backend_pid(), current_setting('server_encoding'), current_setting('array_nulls') = 'on'
""")
"""The first statement of a connection; `greeted` takes its row."""

Steps = Generator[Query, list[Row], T]
"""A write as its statements: each is yielded, its rows are sent back, and the result returned.

So it runs on a thread and on the event loop alike.
"""


class Database:
    """One connection; SQL is written for the schema `relay`, which the configured one replaces.

    Every name is qualified, because a pooler shares `search_path` between its clients.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        """Connect; raises CannotConnect."""
        self._schema = schema
        self.is_listening = False
        self.dsn = dsn
        with connecting():
            self._psycopg: psycopg.Connection[Row] = psycopg.connect(
                completed(dsn), autocommit=True, prepare_threshold=None
            )
            try:
                ((row),) = self._psycopg.execute(GREETING.text.encode()).fetchall()
                self.is_pooled, self.encoding = greeted(self._psycopg, row)
            except BaseException:
                self._psycopg.close()
                raise
        # Written into each BEGIN, because a role may have another default.
        self._psycopg.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self.answers = 0
        """Number of statements that the server has answered."""
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
        A statement for both engines is translated, and its text made storable.
        """
        if isinstance(text, Sql):
            named = values if isinstance(values, Mapping) else {}
            text, values = translated(text), fitted(named)
        cursor = self._psycopg.execute(qualified(text, self._schema), values, binary=True)
        self.answers += 1
        return cursor

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
            results = [cursor.fetchall() if cursor.description else []]
            while cursor.nextset():
                results.append(cursor.fetchall() if cursor.description else [])
            return results

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


def parse(dsn: str) -> dict[str, str]:
    """Return the parameters of a DSN; raises ValueError, without its text."""
    try:
        values = {key: str(value) for key, value in conninfo.conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError:
        message = (
            "is not in the form of libpq: "
            "expected keywords (host=... dbname=...) or a URI (postgresql://...)"
        )
        raise ValueError(message) from None
    # The rest of a password then, which libpq would name in its errors.
    if "@" in values.get("host", "")[1:] or not _PORTS.fullmatch(values.get("port", "")):
        raise ValueError(
            "has @ in a host, or letters in a port: encode / and @ of a password as %2F, %40"
        )
    return values


def completed(dsn: str) -> str:
    """Return the DSN with what the relay's connections need besides."""
    values: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    return conninfo.make_conninfo(**_DEFAULTS | values | _ALWAYS)


@contextmanager
def connecting() -> Iterator[None]:
    """Raise CannotConnect for an error in the block, whose statements carry no values."""
    try:
        yield
    except CannotConnect:
        raise
    except psycopg.OperationalError as error:
        raise CannotConnect(str(error)) from None


def greeted(
    connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row], greeting: Row
) -> tuple[bool, Encoding]:
    """Fit a new connection to its server; return whether a pooler is between, and the encoding.

    Raises CannotConnect for a setting with which nothing can be stored.
    """
    pid, encoding_name, has_array_nulls = greeting
    if not has_array_nulls:
        raise CannotConnect("array_nulls is off for this role or database")
    encoding = Encoding(encoding_name)
    if not encoding.is_universal:
        for dumper in _dumpers(encoding):
            connection.adapters.register_dumper(str, dumper)
    # A pooler makes up the number that it tells its client, and keeps no prepared statement.
    is_pooled = pid != connection.info.backend_pid
    if not is_pooled:
        connection.prepare_threshold = 0
    return is_pooled, encoding


def _dumpers(encoding: Encoding) -> tuple[type[Dumper], ...]:
    """Return what sends text in a form that the server can convert; the last one is preferred."""

    class BinaryText(Dumper):
        format = psycopg.pq.Format.BINARY
        oid = psycopg.adapters.types["text"].oid

        def dump(self, obj: str) -> bytes:
            if "\0" in obj:
                raise psycopg.DataError("a text with NUL")
            return encoding.fit(obj).encode()

    class Text(BinaryText):
        format = psycopg.pq.Format.TEXT
        oid = 0  # the server finds the type, as of psycopg's own texts

    return BinaryText, Text


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
