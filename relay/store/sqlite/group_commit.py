"""Group commit: all who wait share the next transaction; nobody is answered before its fsync."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreError, StoreFull
from relay.store.sqlite.bulk import ROWS_MAX
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.files import Files

BATCH_MAX = 256
"""Transactions stay short, so that the last one who waits is not forgotten."""

WAITING_MAX = 4096
"""A disk that hangs must not fill the memory with what the sender sends again."""

FRESH_S = 0.1
"""Whatever was found sound so short a time ago need not be looked at again."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Write = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Result]]
"""Writes many items at once, and returns one result for each, in their order.

Statements cost more than rows do, because Python's lock changes hands at each.
"""


class Statement(Generic[Item, Result]):
    """A write that is one statement for up to `ROWS_MAX` rows.

    Where nothing else waits it is a transaction by itself, which leaves Python's lock alone.
    Should it take more statements than one to write after all, it makes its own transaction.
    """

    def __init__(
        self, write: Write[Item, Result], *, rows: Callable[[Sequence[Item]], int] = len
    ) -> None:
        """`rows` says how many rows some items make."""
        self._write = write
        self._rows = rows

    def is_one(self, items: Sequence[Item]) -> bool:
        """Whether so many are still one statement."""
        return self._rows(items) <= ROWS_MAX

    def __call__(self, db: sqlite3.Connection, items: Sequence[Item]) -> Sequence[Result]:
        return self._write(db, items)


class _Waiting(NamedTuple):
    write: Write[Any, Any]
    item: Any
    outcome: asyncio.Future[Any]
    done: Callable[[Any], None]


def _nothing(_: object) -> None:
    pass


def _write_nothing(_: sqlite3.Connection, items: Sequence[None]) -> Sequence[None]:
    return items


class GroupCommit:
    """The queue in front of the one connection that writes.

    Items that wait side by side for the same `Write` are given to it together, inside a
    transaction that others share; it may run again when a neighbour made that one fail.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        committed: Callable[[float], None],
        files: Files,
    ) -> None:
        """`committed` is told the seconds that each transaction took.

        `files` are checked on the connection's thread after each one, and all of them before it
        where the last check is no longer fresh.
        """
        # CPython 3.11 makes a system call whenever it is asked which loop runs.
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._clock = clock
        self._committed = committed
        self._files = files
        self._looked_s = -math.inf
        self._waiting: list[_Waiting] = []
        self._flushing: asyncio.Task[None] | None = None
        self.broken: StoreBroken | None = None

    async def submit(
        self,
        write: Write[Item, Result],
        item: Item,
        done: Callable[[Result], None] = _nothing,
    ) -> Result:
        """Have the item written in the next transaction; return its result once it is on disk.

        Cancelling the wait does not take the item back, and `done` is told the result all the same.
        Raises StoreError.
        """
        if self.broken is not None:
            raise self.broken
        if len(self._waiting) >= WAITING_MAX:
            raise StoreError(f"{WAITING_MAX} writes wait for the disk already")
        return await self._queue(write, item, done)

    async def catch_up(self) -> None:
        """Return once all that waits by now is written or refused, however many wait."""
        if self.broken is None:
            with suppress(StoreError):
                await self._queue(_write_nothing, None, _nothing)

    async def _queue(
        self, write: Write[Item, Result], item: Item, done: Callable[[Result], None]
    ) -> Result:
        outcome: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append(_Waiting(write, item, outcome, done))
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())
        return await outcome

    async def apart(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run what cannot be in a transaction, between two of them; raises StoreError.

        The files are checked right before it: a checkpoint of a damaged log would damage the
        database as well.
        """
        if self.broken is not None:
            raise self.broken
        self._looked_s = -math.inf
        try:
            return await self._connection.run(lambda db: self._guarded(db, work))
        except (sqlite3.Error, StoreError) as error:
            refusal = meaning(error) or StoreError(f"not done: {_name(error)}")
            if isinstance(refusal, StoreBroken):
                self.condemn(refusal)
            raise refusal from None

    def condemn(self, error: StoreBroken) -> None:
        """Write nothing more and report nothing as written, because of what was found elsewhere."""
        self._refuse([], error)

    async def close(self) -> None:
        """Finish what waits, then close the connection, which writes the log home."""
        if self._flushing is not None:
            await self._flushing
        await self._connection.close()

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:BATCH_MAX]
            del self._waiting[:BATCH_MAX]
            await self._write(batch)
            if self._files.log_is_long():
                with suppress(StoreError):
                    await self.apart(_write_home)
        self._flushing = None

    async def _write(self, batch: list[_Waiting]) -> None:
        started = self._clock.monotonic()
        try:
            results = await self._connection.run(
                lambda db: self._guarded(db, lambda db: _transact(db, batch))
            )
        except Exception as error:  # noqa: BLE001  sorted by what it means
            refusal = meaning(error)
            if refusal is not None or len(batch) == 1:
                self._refuse(batch, refusal or StoreError(f"not written: {_name(error)}"))
                return
            # One item's own fault must not fail its neighbours: each gets its own transaction.
            for waiting in batch:
                if self.broken is None:
                    await self._write([waiting])
                else:
                    self._refuse([waiting], self.broken)
            return
        self._committed(self._clock.monotonic() - started)
        if self.broken is not None:
            self._refuse(batch, self.broken)
            return
        for waiting, result in zip(batch, results, strict=True):
            _tell(waiting.done, result)
            if not waiting.outcome.done():
                waiting.outcome.set_result(result)

    def _guarded(
        self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result]
    ) -> Result:
        # Every look gives Python's lock away, which is dear while requests are waiting for it.
        if self._clock.monotonic() - self._looked_s >= FRESH_S:
            self._files.require_all(db)
        try:
            result = work(db)
        except sqlite3.Error as error:
            if may_lack_room(error) and (shortage := self._files.shortage()):
                raise StoreFull(f"{shortage} ({_name(error)})") from None
            raise
        self._files.require(db)
        self._looked_s = self._clock.monotonic()
        return result

    def _refuse(self, batch: list[_Waiting], error: StoreError) -> None:
        if isinstance(error, StoreBroken):
            self.broken = error
            batch = batch + self._waiting
            self._waiting = []
        for waiting in batch:
            if not waiting.outcome.done():
                waiting.outcome.set_exception(error)


def _write_home(db: sqlite3.Connection) -> None:
    """Write the log home as far as no reader needs it, without waiting for readers."""
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _tell(done: Callable[[Any], None], result: object) -> None:
    try:
        done(result)
    except Exception as error:  # noqa: BLE001  the fault of one who listens must not stop the others
        context = {"message": "told of a write, failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _transact(db: sqlite3.Connection, batch: list[_Waiting]) -> list[Any]:
    alone = batch[0].write
    if isinstance(alone, Statement) and _is_all_for(alone, batch):
        items = [waiting.item for waiting in batch]
        if alone.is_one(items):
            return list(alone(db, items))
    results: list[Any] = []
    with transaction(db):
        for write, alike in groupby(batch, key=lambda waiting: waiting.write):
            results += write(db, [waiting.item for waiting in alike])
    return results


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; a part of the one that is under way, where one is."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # A full disk has rolled the transaction back already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _is_all_for(write: object, batch: list[_Waiting]) -> bool:
    return all(waiting.write is write for waiting in batch)


def meaning(error: Exception) -> StoreError | None:
    """What an error says about the whole store; None if only one item of its own failed.

    Nothing of a transaction that ran out of room was written.
    After any other I/O error the kernel may have dropped what it could not write (sqlite.md,
    section 1), so trying again in this process would prove nothing.
    """
    if isinstance(error, StoreError):
        return error
    name = _name(error)
    if name in _NO_ROOM:
        return StoreFull(f"the disk is full ({name})")
    if name.startswith(_BUSY):
        return StoreError(f"another program holds the store's write lock ({name})")
    if name.startswith(_DAMAGED):
        return StoreBroken(f"the store is damaged ({name})")
    if name.startswith(_BROKEN):
        return StoreBroken(f"the store cannot be written ({name})")
    return None


def may_lack_room(error: sqlite3.Error) -> bool:
    """Whether a used-up quota can be the cause, where SQLite has rolled back; never a failed sync.

    For SQLite it is an I/O error like any other: `disk.shortage` says what it is.
    """
    return _name(error) in _PERHAPS_NO_ROOM


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", type(error).__name__)


_NO_ROOM = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"})
_PERHAPS_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN"})
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_BROKEN = (
    "SQLITE_IOERR",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PROTOCOL",
)
