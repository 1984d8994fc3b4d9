"""A queue of writes for one connection: patience with the server, and answers after the commit."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreError, StoreUnavailable
from relay.store.postgres.driver import Query
from relay.store.postgres.errors import (
    classify,
    error_name,
    is_connection_lost,
    may_succeed_again,
)

WRITTEN = "SELECT pg_logical_emit_message(true, 'relay', '')"
"""Part of a statement that would otherwise only read; leaves no row behind.

After a crash, the server shows commits that its standby may never have received, so a read is no
proof of them; the commit of a write proves that all earlier ones are on the standby too.
"""
CONFIRM = Query(WRITTEN)
"""Once it is done, all that was visible before is as durable as the server promises."""

PATIENCE_S = 15.0
"""Time without an answer after which the connection is given up, and requests are refused."""

LOOKS = 3
"""Looks in that time whether there was an answer."""

GIVE_WAY_S = 0.05
"""Pause after a deadlock, in which the other transaction takes its locks."""

WAITING_MAX = 4096
"""Maximum queued items: while the database hangs, the sender's retries must not fill the memory."""

Result = TypeVar("Result")


class Waiting(NamedTuple):
    """An item, what writes it, and who is told of its result."""

    write: Any
    item: Any
    outcome: asyncio.Future[Any]
    done: Callable[[Any], None]


def nothing(_: object) -> None:
    pass


class WriteQueue(ABC):
    """Writes what waits, batch after batch, and tells each item's caller its result."""

    def __init__(
        self,
        *,
        clock: Clock,
        committed: Callable[[float], None],
        batch_max: int,
    ) -> None:
        """`committed` is called with the seconds of each batch."""
        # Kept, because CPython 3.11 makes a system call in `get_running_loop`.
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._committed = committed
        self._batch_max = batch_max
        self._waiting: list[Waiting] = []
        self._flushing: asyncio.Task[None] | None = None
        self._hangs = False
        self._refusal: StoreUnavailable | None = None
        self._timer: asyncio.TimerHandle

    @abstractmethod
    async def _run(self, batch: list[Waiting]) -> list[Any]:
        """Write the batch; raises psycopg.Error, OutcomeUnknown and StoreError."""

    @abstractmethod
    async def _run_again(self, batch: list[Waiting]) -> list[Any]:
        """Write it once more, and let no result rest on a read."""

    @abstractmethod
    def _answers(self) -> int:
        """Return the number of the server's answers to the connection so far."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Break the connection, so that what runs on it fails."""

    @abstractmethod
    async def _close(self) -> None: ...

    async def close(self) -> None:
        """Finish the queue, then close the connection."""
        if self._flushing is not None:
            await self._flushing
        await self._close()

    def refuse(self, error: StoreError) -> None:
        """Write nothing more; what has begun ends."""
        self._refusal = StoreUnavailable(str(error))
        waiting, self._waiting = self._waiting, []
        _refuse(waiting, self._refusal)

    async def _submit(self, write: object, item: object, done: Callable[[Any], None]) -> Any:
        """Write the item in the next batch; return its result once it is committed.

        Cancelling the wait does not withdraw the item: `done` is still called with the result.
        Raises StoreError.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._hangs:
            raise StoreUnavailable("the database does not answer")
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} writes are already waiting for the database")
        return await self._queue(write, item, done)

    async def _queue(self, write: object, item: object, done: Callable[[Any], None]) -> Any:
        outcome: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(Waiting(write, item, outcome, done))
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())
        return await outcome

    async def _flush(self) -> None:
        while self._waiting:
            await self._write(self._next_batch())
        self._flushing = None
        self._hangs = False

    def _next_batch(self) -> list[Waiting]:
        """Take all of one kind of write, for none of the others depends on how they are mixed."""
        write = self._waiting[0].write
        batch = [each for each in self._waiting if each.write is write][: self._batch_max]
        taken = set(map(id, batch))
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        return batch

    async def _write(self, batch: list[Waiting]) -> None:
        started = self._clock.monotonic()
        try:
            results = await self._commit(batch)
        except Exception as error:  # noqa: BLE001  classified below
            refusal = classify(error)
            if refusal is not None or len(batch) == 1:
                _refuse(batch, refusal or StoreUnavailable(f"not written: {error_name(error)}"))
                return
            # One item may be at fault, and must not fail the others.
            for waiting in batch:
                await self._write([waiting])
            return
        self._committed(self._clock.monotonic() - started)
        for waiting, result in zip(batch, results, strict=True):
            _call_done(waiting.done, result)
            if not waiting.outcome.done():
                waiting.outcome.set_result(result)

    async def _commit(self, batch: list[Waiting]) -> list[Any]:
        try:
            return await self._patiently(self._run, batch)
        except Exception as error:
            if may_succeed_again(error):
                await asyncio.sleep(GIVE_WAY_S)
            elif not is_connection_lost(error):
                raise
        # It may have been committed, or be about to be: only doing it again tells, because it then
        # waits for what the server may still be doing.
        return await self._patiently(self._run_again, batch)

    async def _patiently(
        self, run: Callable[[list[Waiting]], Awaitable[list[Any]]], batch: list[Waiting]
    ) -> list[Any]:
        """Run on the connection, which is broken if the server does not answer for too long.

        The statement is never cancelled: that would turn a commit which waits for a standby into a
        success. Nor is it a task of its own: it has to begin before the callers of the last batch
        go on, so that the server works meanwhile.
        """
        self._watch(batch, self._answers(), silent=0)
        try:
            results = await run(batch)
        finally:
            self._timer.cancel()
        self._hangs = False
        return results

    def _watch(self, batch: list[Waiting], answers: int, *, silent: int) -> None:
        """Give up once so many looks in a row have found no answer more."""
        if silent == LOOKS:
            self._give_up(batch)
            return

        def look() -> None:
            now = self._answers()
            self._watch(batch, now, silent=silent + 1 if now == answers else 0)

        self._timer = self._loop.call_later(PATIENCE_S / LOOKS, look)

    def _give_up(self, batch: list[Waiting]) -> None:
        self._hangs = True
        waiting, self._waiting = self._waiting, []
        unanswered = StoreUnavailable(f"the database has not answered for {PATIENCE_S:g} s")
        _refuse([*batch, *waiting], unanswered)
        self._hang_up()


def _refuse(batch: list[Waiting], error: StoreError) -> None:
    for waiting in batch:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(error)


def _call_done(done: Callable[[Any], None], result: object) -> None:
    try:
        done(result)
    except Exception as error:  # noqa: BLE001  a callback's fault must not stop the others
        context = {"message": "the callback of a write failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
