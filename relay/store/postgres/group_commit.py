"""Group commit: concurrent writes share a transaction, and return after its commit."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreError, StoreUnavailable
from relay.store.postgres.driver import Connection, Database, psycopg
from relay.store.postgres.errors import classify, error_name, is_connection_lost

BATCH_MAX = 256
"""Maximum items per transaction, which bounds the wait of the next one."""

WAITING_MAX = 4096
"""Maximum queued items: while the database hangs, the sender's retries must not fill the memory."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Database, Sequence[Item]], Sequence[Result]]
"""Writes many items at once, and returns a result for each, in their order.

It may run twice: again on a new connection when the outcome of a commit is unknown.
"""


class Statement(Generic[Item, Result]):
    """A write that is one statement, which commits by itself where nothing else waits.

    No lock is then held over a round trip, in which the relay could be stopped.
    """

    def __init__(self, write: Write[Item, Result]) -> None:
        self._write = write

    def __call__(self, db: Database, items: Sequence[Item]) -> Sequence[Result]:
        return self._write(db, items)


class _Waiting(NamedTuple):
    write: Write[Any, Any]
    item: Any
    outcome: asyncio.Future[Any]
    done: Callable[[Any], None]


def _nothing(_: object) -> None:
    pass


def _write_nothing(_: Database, items: Sequence[None]) -> Sequence[None]:
    return items


class GroupCommit:
    """Queues writes for one connection."""

    def __init__(
        self, connection: Connection, *, clock: Clock, committed: Callable[[float], None]
    ) -> None:
        """`committed` is called with the seconds of each transaction."""
        self._connection = connection
        self._clock = clock
        self._committed = committed
        self._waiting: list[_Waiting] = []
        self._flushing: asyncio.Task[None] | None = None

    async def submit(
        self,
        write: Write[Item, Result],
        item: Item,
        done: Callable[[Result], None] = _nothing,
    ) -> Result:
        """Write the item in the next transaction; return its result once it is committed.

        Cancelling the wait does not withdraw the item: `done` is still called with the result.
        Raises StoreError.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} writes are already waiting for the database")
        return await self._queue(write, item, done)

    async def transact(
        self,
        work: Callable[[Database], Result],
        done: Callable[[Result], None] = _nothing,
    ) -> Result:
        """Run work in the next transaction; as `submit` for work that is not done in bulk."""
        return await self.submit(lambda db, _: [work(db)], None, done)

    async def execute(self, sql: str, *values: object) -> None:
        """Run one statement in the next transaction; raises StoreError."""
        await self.transact(lambda db: db.execute(sql, values).rowcount)

    async def catch_up(self) -> None:
        """Return once every item queued so far is written or refused."""
        with suppress(StoreError):
            await self._queue(_write_nothing, None, _nothing)

    async def close(self) -> None:
        """Finish the queue, then close the connection."""
        if self._flushing is not None:
            await self._flushing
        await self._connection.close()

    async def _queue(
        self, write: Write[Item, Result], item: Item, done: Callable[[Result], None]
    ) -> Result:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()
        self._waiting.append(_Waiting(write, item, outcome, done))
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush())
        return await outcome

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:BATCH_MAX]
            del self._waiting[:BATCH_MAX]
            await self._write(batch)
        self._flushing = None

    async def _write(self, batch: list[_Waiting]) -> None:
        started = self._clock.monotonic()
        try:
            results = await self._commit(batch)
        except Exception as error:  # noqa: BLE001  classified below
            refusal = classify(error)
            if refusal is not None or len(batch) == 1:
                _refuse(batch, refusal or StoreUnavailable(f"not written: {error_name(error)}"))
                return
            # One item may be at fault, and must not fail the others: each gets a transaction.
            for waiting in batch:
                await self._write([waiting])
            return
        self._committed(self._clock.monotonic() - started)
        for waiting, result in zip(batch, results, strict=True):
            _call_done(waiting.done, result)
            if not waiting.outcome.done():
                waiting.outcome.set_result(result)

    async def _commit(self, batch: list[_Waiting]) -> list[Any]:
        try:
            return await self._connection.run(lambda db: _transact(db, batch))
        except psycopg.Error as error:
            if not is_connection_lost(error):
                raise
        # It may have been committed, or be about to be: only doing it again tells, because it then
        # waits for what the server may still be doing.
        return await self._connection.run(lambda db: _transact(db, batch))


def _transact(db: Database, batch: list[_Waiting]) -> list[Any]:
    first = batch[0].write
    if isinstance(first, Statement) and all(waiting.write is first for waiting in batch):
        return list(first(db, [waiting.item for waiting in batch]))
    results: list[Any] = []
    with db.transaction():
        for write, group in groupby(batch, key=lambda waiting: waiting.write):
            results += write(db, [waiting.item for waiting in group])
    return results


def _refuse(batch: list[_Waiting], error: StoreError) -> None:
    for waiting in batch:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(error)


def _call_done(done: Callable[[Any], None], result: object) -> None:
    try:
        done(result)
    except Exception as error:  # noqa: BLE001  a callback's fault must not stop the others
        context = {"message": "the callback of a write failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
