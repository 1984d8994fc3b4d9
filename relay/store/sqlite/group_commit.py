"""Group commit: concurrent writes share a transaction, and return after its fsync."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreUnavailable
from relay.store.sqlite import generation
from relay.store.sqlite.bulk import ROWS_MAX
from relay.store.sqlite.commit_timer import CommitTimer
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.errors import classify, error_name, may_lack_room
from relay.store.sqlite.files import Files

BATCH_MAX = 256
"""Maximum items per transaction, which bounds the wait of the next one."""

WAITING_MAX = 4096
"""Maximum queued items: while the disk hangs, the sender's retries must not fill the memory."""

CHECK_INTERVAL_S = 0.1
"""Time for which a check of the files stays valid before a transaction."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result]]
"""Writes many items at once, and returns a result for each, in their order.

A statement costs more than a row, because Python's lock changes hands at each.
"""


class Statement(Generic[Item, Result]):
    """A write that is one statement for up to `ROWS_MAX` rows.

    If nothing else waits, the statement is its own transaction, which saves changes of Python's
    lock. A write that needs more statements after all opens a transaction itself.
    """

    def __init__(
        self,
        write: Write[Item, Result],
        *,
        rows: Callable[[Sequence[Item]], int] = len,
        gathers: bool = False,
    ) -> None:
        """`rows` returns the number of rows of some items.

        Items of one that `gathers` may wait for others, as the `CommitTimer` says.
        """
        self._write = write
        self._rows = rows
        self.gathers = gathers

    def fits(self, items: Sequence[Item]) -> bool:
        """Whether the items fit into one statement."""
        return self._rows(items) <= ROWS_MAX

    def __call__(self, db: sqlite3.Connection, items: Sequence[Item]) -> Sequence[Result]:
        return self._write(db, items)


class _Waiting(NamedTuple):
    write: Write[Any, Any]
    item: Any
    outcome: asyncio.Future[Any]
    done: Callable[[Any], None]


def _gathers(waiting: _Waiting) -> bool:
    return isinstance(waiting.write, Statement) and waiting.write.gathers


def _nothing(_: object) -> None:
    pass


def _write_nothing(_: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
    return items


class GroupCommit:
    """Queues writes for the only connection that writes.

    Adjacent items of the same `Write` are passed to it together, in a transaction that others
    share; it runs again if another item made the transaction fail.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        committed: Callable[[float], None],
        files: Files,
        rolled_back: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is called with the seconds of each transaction, without a checkpoint.

        `rolled_back` is called after each one that failed; both are called before the next one.
        `files` are checked on the connection's thread after each transaction, and all of them
        before it if the last check is older than `CHECK_INTERVAL_S`.
        """
        # Kept, because CPython 3.11 makes a system call in `get_running_loop`.
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._clock = clock
        self._committed = committed
        self._files = files
        self._rolled_back = rolled_back
        self._checked_s = -math.inf
        self._is_log_over = False
        """Whether the next transaction begins another log, and has to number it."""
        self._waiting: list[_Waiting] = []
        self._timer = CommitTimer(self._loop, self._start)
        self._writing: asyncio.Task[None] | None = None
        self.broken: StoreBroken | None = None

    async def submit(
        self,
        write: Write[Item, Result],
        item: Item,
        done: Callable[[Result], None] = _nothing,
    ) -> Result:
        """Write the item in the next transaction; return its result once it is on disk.

        Cancelling the wait does not withdraw the item: `done` is still called with the result.
        Raises StoreError.
        """
        if self.broken is not None:
            raise self.broken
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} writes are already waiting for the disk")
        return await self._queue(write, item, done)

    async def transact(
        self,
        work: Callable[[sqlite3.Connection], Result],
        done: Callable[[Result], None] = _nothing,
    ) -> Result:
        """Run work in the next transaction; as `submit` for work that is not done in bulk.

        It runs again if another item made the transaction fail.
        """
        return await self.submit(lambda db, _: [work(db)], None, done)

    async def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any], /) -> None:
        """Run one statement in the next transaction; raises StoreError."""
        await self.transact(lambda db: db.execute(sql, values).rowcount)

    async def catch_up(self) -> None:
        """Return once every item queued so far is written or refused."""
        if self.broken is None:
            with suppress(StoreError):
                await self._queue(_write_nothing, None, _nothing)

    async def _queue(
        self, write: Write[Item, Result], item: Item, done: Callable[[Result], None]
    ) -> Result:
        outcome: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append(_Waiting(write, item, outcome, done))
        if self._writing is None:
            self._schedule()
        return await outcome

    async def run_exclusive(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run work outside of a transaction, between two of them; raises StoreError."""
        if self.broken is not None:
            raise self.broken
        try:
            return await self._connection.run(lambda db: self._exclusively(db, work))
        except (sqlite3.Error, StoreError) as error:
            refusal = classify(error) or StoreUnavailable(f"not done: {error_name(error)}")
            if isinstance(refusal, StoreBroken):
                self.mark_broken(refusal)
            raise refusal from None

    def mark_broken(self, error: StoreBroken) -> None:
        """Refuse all further writes, because of damage found elsewhere."""
        self._refuse([], error)

    async def close(self) -> None:
        """Finish the queue, then close the connection, which checkpoints the log."""
        while self._waiting or self._writing is not None:
            if self._writing is None:
                self._timer.start()
            else:
                await self._writing
        await self._connection.close()

    def _schedule(self) -> None:
        if all(map(_gathers, self._waiting)):
            self._timer.schedule(len(self._waiting))
        else:
            self._timer.start()

    def _start(self) -> None:
        if self._waiting:
            self._writing = self._loop.create_task(self._write_next())

    async def _write_next(self) -> None:
        batch = self._waiting[:BATCH_MAX]
        del self._waiting[:BATCH_MAX]
        await self._write(batch)
        self._writing = None
        if self._waiting:
            self._schedule()

    async def _write(self, batch: list[_Waiting]) -> None:
        started = self._clock.monotonic()
        try:
            results, committed_s = await self._connection.run(lambda db: self._commit(db, batch))
        except Exception as error:  # noqa: BLE001  classified below
            self._rolled_back()
            refusal = classify(error)
            if refusal is not None or len(batch) == 1:
                self._refuse(
                    batch, refusal or StoreUnavailable(f"not written: {error_name(error)}")
                )
                return
            # One item may be at fault, and must not fail the others: each gets a transaction.
            for waiting in batch:
                if self.broken is None:
                    await self._write([waiting])
                else:
                    self._refuse([waiting], self.broken)
            return
        self._committed(committed_s - started)
        if self.broken is not None:
            self._refuse(batch, self.broken)
            return
        for waiting, result in zip(batch, results, strict=True):
            _call_done(waiting.done, result)
            if not waiting.outcome.done():
                waiting.outcome.set_result(result)

    def _commit(self, db: sqlite3.Connection, batch: list[_Waiting]) -> tuple[list[Any], float]:
        """Return the results, and the time of the commit."""
        try:
            results = self._guarded(db, lambda db: self._transact(db, batch))
        except Exception as error:
            if classify(error) is None and self._files.has_commit():
                # It must not run again.
                reason = f"the outcome of a transaction is unknown ({error_name(error)})"
                raise StoreBroken(reason) from None
            raise
        committed_s = self._clock.monotonic()
        if self._files.log_is_long():
            # In the same call: requests would wait for a call of its own all at once, and
            # transactions would no longer overlap with the work on requests.
            self._checkpoint(db)
        return results, committed_s

    def _transact(self, db: sqlite3.Connection, batch: list[_Waiting]) -> list[Any]:
        if not self._is_log_over:
            return _transact(db, batch)
        with transaction(db):
            generation.advance(db)
            results = _transact(db, batch)
        self._is_log_over = False
        return results

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Checkpoint the log as far as no reader needs it; raises only if the store is broken."""
        try:
            self._is_log_over |= self._exclusively(db, _checkpoint)
        except Exception as error:
            # Any other must not make the transaction before it run again.
            if isinstance(classify(error), StoreBroken):
                raise

    def _exclusively(
        self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result]
    ) -> Result:
        # A checkpoint of a damaged log would damage the database too.
        self._checked_s = -math.inf
        return self._guarded(db, work)

    def _guarded(
        self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result]
    ) -> Result:
        # A check releases Python's lock, which is expensive to regain while requests wait for it.
        if self._clock.monotonic() - self._checked_s >= CHECK_INTERVAL_S:
            self._files.require_all(db)
        try:
            result = work(db)
        except sqlite3.Error as error:
            if may_lack_room(error) and (shortage := self._files.shortage()):
                raise StoreFull(f"{shortage} ({error_name(error)})") from None
            raise
        self._files.require(db)
        self._checked_s = self._clock.monotonic()
        return result

    def _refuse(self, batch: list[_Waiting], error: StoreError) -> None:
        if isinstance(error, StoreBroken):
            self.broken = error
            batch = batch + self._waiting
            self._waiting = []
        for waiting in batch:
            if not waiting.outcome.done():
                waiting.outcome.set_exception(error)


def _checkpoint(db: sqlite3.Connection) -> bool:
    """Checkpoint what no reader needs; return whether that was all of the log."""
    _, frames, written = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return bool(written == frames)


def _call_done(done: Callable[[Any], None], result: object) -> None:
    try:
        done(result)
    except Exception as error:  # noqa: BLE001  a callback's fault must not stop the others
        context = {"message": "the callback of a write failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _transact(db: sqlite3.Connection, batch: list[_Waiting]) -> list[Any]:
    first = batch[0].write
    if isinstance(first, Statement) and all(waiting.write is first for waiting in batch):
        items = [waiting.item for waiting in batch]
        if first.fits(items):
            return list(first(db, items))
    results: list[Any] = []
    with transaction(db):
        for write, group in groupby(batch, key=lambda waiting: waiting.write):
            results += write(db, [waiting.item for waiting in group])
    return results


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction: in the current one if there is one, else in its own."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite has already rolled back.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
