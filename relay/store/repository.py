"""What the subjects of a store stand on: connections, and what only an engine can do."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from relay.core.delivery import Status
from relay.store.keyed_digests import PersonDigests, TokenDigests
from relay.store.rows import Row
from relay.store.selection import Conditions
from relay.store.sql import Database, Sql, Values

T = TypeVar("T")

Moved = Mapping[tuple[str, Status], int]
"""Changes of the numbers of deliveries, by sink and status."""


class Reader(Protocol):
    """A connection that reads."""

    async def read(self, query: Callable[[Database], T]) -> T:
        """Run a query; raises StoreError."""
        ...


class Writer(Protocol):
    """A connection that writes."""

    async def transact(
        self, work: Callable[[Database], T], done: Callable[[T], None] = ..., /
    ) -> T:
        """Run work in a transaction; raises StoreError.

        It may run twice, also after its commit: again where the outcome of that is unknown.
        `done` is called with the result once it is on disk, even if the caller was cancelled.
        """
        ...

    async def execute(self, text: Sql, values: Values, /) -> None:
        """Run one statement as a transaction; raises StoreError."""
        ...


class Connections(Protocol):
    """The connections of an engine, each with its purpose, and what only the engine can do."""

    @property
    def leaser(self) -> Reader:
        """Reads for deliveries, which no other read delays."""
        ...

    @property
    def reader(self) -> Reader:
        """Reads for operators."""
        ...

    @property
    def searcher(self) -> Reader:
        """Reads for operators that may scan the whole store."""
        ...

    @property
    def pager(self) -> Reader:
        """Reads for operators' pages, in short steps."""
        ...

    @property
    def background(self) -> Writer:
        """Writes of operators and of maintenance."""
        ...

    @property
    def conditions(self) -> Conditions:
        """Selections in the engine's SQL."""
        ...

    @property
    def digests(self) -> PersonDigests: ...

    @property
    def tokens(self) -> TokenDigests: ...

    async def draw(self, table: str, /) -> int | None:
        """Return the number of a new row, so that it is the same if its write runs twice.

        None where the insertion makes it, because no write runs twice after its commit.
        """
        ...

    @property
    def rollup(self) -> AbstractAsyncContextManager[object]:
        """Held while the audience by day, or a person in it, changes in several transactions."""
        ...

    def is_leased(self, sink: str, seq: int, /) -> bool:
        """Whether a dispatcher of this relay may be sending a delivery; called on any thread."""
        ...

    def count(self, moved: Moved, /) -> None:
        """Count the deliveries whose status a transaction has changed, once it is on disk."""
        ...

    def require_room(self) -> None:
        """Raise StoreFull below the floor of free space."""
        ...

    def announce(self, db: Database, /, *, sink_to_try: str | None = None) -> None:
        """Let the other relays notice what an operator has changed in this transaction.

        Or only that a sink is to be tried at once.
        """
        ...

    def overwrite(self, table: str, /) -> None:
        """Have the old copies of deleted rows removed from the store's files."""
        ...


class Repository:
    """A subject of the store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reader = connections.reader
        self._searcher = connections.searcher
        self._background = connections.background


async def rows(reader: Reader, text: Sql, values: Values) -> list[Row]:
    """Read all rows of a statement."""
    return await reader.read(lambda db: db.execute(text, values).fetchall())


async def row(reader: Reader, text: Sql, values: Values) -> Row | None:
    """Read the only row of a statement, if it has one."""
    return await reader.read(lambda db: db.execute(text, values).fetchone())
