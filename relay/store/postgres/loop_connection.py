"""psycopg in use on the event loop, for the few writes that come thousands of times a second.

What has begun is never cancelled; see `connection`.
"""

import asyncio
from collections.abc import Callable
from typing import Self, TypeVar

from relay.core.errors import StoreUnavailable
from relay.store.postgres.access import Access
from relay.store.postgres.connection import read_again
from relay.store.postgres.driver import (
    DOUBTS,
    GREETING,
    Query,
    Row,
    Steps,
    completed,
    connecting,
    greeted,
    hang_up,
    psycopg,
    qualified,
)
from relay.store.postgres.errors import OutcomeUnknown, is_connection_lost

T = TypeVar("T")


class _Session:
    """One connection to the server."""

    def __init__(self, connection: psycopg.AsyncConnection[Row], dsn: str, schema: str) -> None:
        self.dsn = dsn
        self._psycopg = connection
        self._schema = schema
        self.is_in_doubt = False
        """Whether a commit was reported as done that may be missing on the standby."""

    @classmethod
    async def begin(cls, dsn: str, schema: str) -> Self:
        """Connect; raises CannotConnect."""
        with connecting():
            connection = await psycopg.AsyncConnection.connect(
                completed(dsn), autocommit=True, prepare_threshold=None
            )
            session = cls(connection, dsn, schema)
            try:
                ((row),) = await session.execute(GREETING)
                greeted(connection, row)
            except BaseException:
                await connection.close()
                raise
        connection.add_notice_handler(session.receive_notice)
        return session

    def receive_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Note a warning that the last commit is in doubt."""
        if notice.sqlstate in DOUBTS:
            self.is_in_doubt = True

    @property
    def is_usable(self) -> bool:
        return not self._psycopg.closed

    async def execute(self, query: Query) -> list[Row]:
        cursor = await self._psycopg.execute(
            qualified(query.text, self._schema), query.values, binary=True
        )
        return await cursor.fetchall() if cursor.description else []

    async def perform(self, steps: Steps[T]) -> T:
        """Run the statements of a write; return its result."""
        try:
            query = next(steps)
            while True:
                query = steps.send(await self.execute(query))
        except StopIteration as end:
            result: T = end.value
            return result

    def hang_up(self) -> None:
        """Break the connection, which ends the wait for the server at once."""
        hang_up(self._psycopg)

    async def close(self) -> None:
        await self._psycopg.close()


class LoopConnection:
    """A session, begun anew after it was lost or its DSN changed; calls wait for one another."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: _Session | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        access.watch(self)

    async def write(self, write: Callable[[], Steps[T]]) -> T:
        """Run a write; raises psycopg.Error, OutcomeUnknown and StoreUnavailable."""
        async with self._lock:
            session = await self._begun()
            session.is_in_doubt = False
            try:
                result = await session.perform(write())
            except psycopg.Error as error:
                # The server may have said that it ends the session without having closed it yet.
                if is_connection_lost(error):
                    await self._drop()
                raise
            if session.is_in_doubt:
                # The warning may be that the server ends the session.
                await self._drop()
                raise OutcomeUnknown
            return result

    async def read(self, query: Query) -> list[Row]:
        """Run a query as `read_again` does."""

        def steps() -> Steps[list[Row]]:
            return (yield query)

        return await read_again(lambda: self.write(steps))

    def hang_up(self) -> None:
        """Break the connection, so that what runs on it fails; the next one is a new one."""
        if self._session is not None:
            self._session.hang_up()

    def move(self) -> None:
        """Leave a session of another DSN once what it does has ended."""
        self._moving = asyncio.get_running_loop().create_task(self._leave_outdated())

    async def _leave_outdated(self) -> None:
        async with self._lock:
            if self._session is not None and not self._access.is_current(self._session.dsn):
                await self._drop()

    async def close(self) -> None:
        """Close it after what has begun."""
        async with self._lock:
            self._is_closed = True
            await self._drop()

    async def _begun(self) -> _Session:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if self._session is not None and not (
            self._session.is_usable and self._access.is_current(self._session.dsn)
        ):
            await self._drop()
        if self._session is None:
            self._session = await _Session.begin(self._access.dsn, self._access.schema)
        return self._session

    async def _drop(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
