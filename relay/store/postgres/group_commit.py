"""Group commit: concurrent writes share a transaction, and return after its commit."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby, islice, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreError, StoreUnavailable
from relay.store.postgres.confirmation import confirm
from relay.store.postgres.driver import Connection, Database
from relay.store.postgres.errors import (
    OutcomeUnknown,
    classify,
    error_name,
    is_connection_lost,
    may_succeed_again,
)

BATCH_MAX = 256
"""Maximum items per transaction, which bounds the wait of the next one."""

PATIENCE_S = 15.0
"""Time without an answer after which the connection is given up, and requests are refused."""

GIVE_WAY_S = 0.05
"""Pause after a deadlock, in which the other transaction takes its locks."""

WAITING_MAX = 4096
"""Maximum queued items: while the database hangs, the sender's retries must not fill the memory."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[Database, Sequence[Item]], Sequence[Result]]
"""Writes many items at once, and returns a result for each, in their order.

It may run twice: again on a new connection when the outcome of a commit is unknown.
"""


class Statement(Generic[Item, Result]):
    """A write whose statements each commit by themselves.

    No lock is held over a round trip: a relay that is suspended there would block the others.
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
        self,
        connection: Connection,
        *,
        clock: Clock,
        committed: Callable[[float], None] = _nothing,
        batch_max: int = BATCH_MAX,
    ) -> None:
        """`committed` is called with the seconds of each transaction."""
        self._batch_max = batch_max
        self._connection = connection
        self._clock = clock
        self._committed = committed
        self._waiting: list[_Waiting] = []
        self._flushing: asyncio.Task[None] | None = None
        self._hangs = False

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
        if self._hangs:
            raise StoreUnavailable("the database does not answer")
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

    async def respond(self) -> None:
        """Return once the server has answered, so not while it hangs; raises StoreUnavailable."""
        await self._connection.read(lambda db: db.execute("SELECT").rowcount)

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
            await self._write(self._next_batch())
        self._flushing = None
        self._hangs = False

    def _next_batch(self) -> list[_Waiting]:
        """Take the oldest items that can share a transaction.

        A statement takes all of its items, for none of the others depends on how they are mixed.
        """
        write = self._waiting[0].write
        if isinstance(write, Statement):
            batch = [each for each in self._waiting if each.write is write][: self._batch_max]
        else:
            others = takewhile(lambda each: not isinstance(each.write, Statement), self._waiting)
            batch = list(islice(others, self._batch_max))
        taken = set(map(id, batch))
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        return batch

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
            return await self._run(batch, _transact)
        except Exception as error:
            if may_succeed_again(error):
                await asyncio.sleep(GIVE_WAY_S)
            elif not is_connection_lost(error):
                raise
        # It may have been committed, or be about to be: only doing it again tells, because it then
        # waits for what the server may still be doing.
        return await self._run(batch, _transact_again)

    async def _run(
        self, batch: list[_Waiting], work: Callable[[Database, list[_Waiting]], list[Any]]
    ) -> list[Any]:
        """Run on the connection, which is broken if the server does not answer for too long.

        The statement is never cancelled: that would turn a commit which waits for a standby into a
        success.
        """
        running = asyncio.ensure_future(self._connection.run(lambda db: work(db, batch)))
        finished, _ = await asyncio.wait((running,), timeout=PATIENCE_S)
        self._hangs = not finished
        if not finished:
            unanswered = StoreUnavailable(f"the database has not answered for {PATIENCE_S:g} s")
            waiting, self._waiting = self._waiting, []
            _refuse([*batch, *waiting], unanswered)
            self._connection.hang_up()
        return await running


def _transact(db: Database, batch: list[_Waiting]) -> list[Any]:
    write = batch[0].write
    db.is_in_doubt = False
    if isinstance(write, Statement):
        results = list(write(db, [waiting.item for waiting in batch]))
    else:
        results = []
        with db.transaction():
            for each, group in groupby(batch, key=lambda waiting: waiting.write):
                results += each(db, [waiting.item for waiting in group])
    if db.is_in_doubt:
        raise OutcomeUnknown
    return results


def _transact_again(db: Database, batch: list[_Waiting]) -> list[Any]:
    results = _transact(db, batch)
    # It may have found all of it done, and that is only certain after another write.
    confirm(db)
    if db.is_in_doubt:
        raise OutcomeUnknown
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
