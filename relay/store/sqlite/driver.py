"""The SQLite in use: the newer one of the `sqlite` extra if installed, else Python's own.

Nothing else may import sqlite3 or aiosqlite: two SQLites on one file drop each other's locks.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

try:
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3
except ModuleNotFoundError:
    pass

import sqlite3

import aiosqlite

from relay.core.errors import StoreUnavailable
from relay.store.sqlite.errors import classify

__all__ = [
    "VERSION",
    "Connection",
    "Row",
    "has_wal_reset_fault",
    "open_reader",
    "open_writer",
    "reading",
    "snapshot",
    "sqlite3",
]

VERSION = sqlite3.sqlite_version

Row = tuple[Any, ...]
T = TypeVar("T")

_STATEMENTS = 512
"""Size of the statement cache, for `relay.store.sqlite.bulk`; a few kilobytes per used one."""

_COMMON = """
PRAGMA busy_timeout = 2000;
PRAGMA cache_size = -8000;
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = 0;
"""
_WRITER = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA secure_delete = ON;
PRAGMA journal_size_limit = 67108864;
"""
_READER = """
PRAGMA query_only = ON;
"""


class Connection(aiosqlite.Connection):
    """A connection on its own thread that runs whole functions, because each hop to it costs."""

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` on the connection's thread."""
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query; raises StoreUnavailable, and StoreBroken for damage: the caller decides."""
        try:
            return await self.run(query)
        except sqlite3.Error as error:
            raise classify(error) or StoreUnavailable(
                f"the store cannot be read: {error}"
            ) from None

    async def read_within(
        self, limit_s: float, query: Callable[[sqlite3.Connection], T]
    ) -> T | None:
        """Run a query like `read`, but interrupt it after this time of its own; then None."""
        loop = asyncio.get_running_loop()
        is_over = False
        timer: asyncio.TimerHandle | None = None

        def start_timer(interrupt: Callable[[], None]) -> None:
            nonlocal timer
            if not is_over:
                timer = loop.call_later(limit_s, interrupt)

        def timed(db: sqlite3.Connection) -> T | None:
            # It may have waited for others' queries before.
            loop.call_soon_threadsafe(start_timer, db.interrupt)
            try:
                return query(db)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                    raise
                return None

        try:
            return await self.read(timed)
        finally:
            is_over = True
            if timer is not None:
                timer.cancel()

    async def cut_off(self) -> None:
        """Close it, and interrupt the running function."""
        if self._connection is not None:
            await self.interrupt()
        await self.close()


async def open_writer(path: Path) -> Connection:
    """Open the only connection that writes; it checkpoints only on request."""
    return await _open(f"file:{quote(str(path))}?mode=rwc", _WRITER)


async def open_reader(path: Path) -> Connection:
    """Open a connection that can neither write nor checkpoint."""
    return await _open(f"file:{quote(str(path))}?mode=ro", _READER)


@asynccontextmanager
async def reading(path: Path) -> AsyncIterator[Connection]:
    """Open a reader for the block, whose end interrupts it."""
    reader = await open_reader(path)
    try:
        yield reader
    finally:
        await reader.cut_off()


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Let all reads of the block see the store as of the first one."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


async def _open(uri: str, pragmas: str) -> Connection:
    connection = Connection(
        lambda: sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=_STATEMENTS),
        64,
    )
    try:
        await connection
    except BaseException:
        # aiosqlite only signals its thread to end, and the loop may be closed before it has.
        connection._thread.join()  # noqa: SLF001
        raise
    try:
        await connection.run(lambda db: _prepare(db, pragmas))
    except BaseException:
        await connection.close()
        raise
    return connection


def _prepare(db: sqlite3.Connection, pragmas: str) -> None:
    db.executescript(_COMMON + pragmas)
    # PostgreSQL's, for the statements of both engines.
    for name, choose in (("greatest", max), ("least", min)):
        db.create_function(name, -1, partial(_chosen, choose), deterministic=True)


def _chosen(choose: Callable[..., Any], *values: Any) -> Any:
    return choose((value for value in values if value is not None), default=None)


def has_wal_reset_fault() -> bool:
    """Whether this SQLite can lose pages when several connections write at once.

    sqlite.org, changes.html: fixed in 3.51.3, with back-ports to 3.50.7 and 3.44.6.
    """
    version = sqlite3.sqlite_version_info
    backported = {(3, 50): (3, 50, 7), (3, 44): (3, 44, 6)}
    return version < backported.get(version[:2], (3, 51, 3))
