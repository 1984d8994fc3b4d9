"""Consistent copies of the whole store, made while the relay runs."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from relay.core.errors import StoreFull, StoreUnavailable
from relay.store.sqlite import disk, generation
from relay.store.sqlite.driver import reading, sqlite3

_SUFFIX = ".backup-"


class SqliteBackups:
    """Makes copies beside the store, which exist while they are read."""

    instead = None

    def __init__(self, path: Path, *, min_free: int) -> None:
        self._path = path
        self._min_free = min_free

    def clear(self) -> None:
        """Remove the copies of a killed relay."""
        for copy in self._path.parent.glob(f"{self._path.name}{_SUFFIX}*"):
            copy.unlink(missing_ok=True)

    @asynccontextmanager
    async def copied(self) -> AsyncIterator[Path]:
        """Make a copy without free pages, which is removed at the end of the block.

        Raises StoreFull if it would leave less than the floor of free space, and StoreError.
        """
        target = self._path.with_name(f"{self._path.name}{_SUFFIX}{secrets.token_hex(8)}")
        available = disk.free_bytes(self._path) - self._min_free
        if available < disk.size_bytes(self._path):
            raise StoreFull(
                "too little free space for a copy beside the store, which needs its size again"
            )
        try:
            # Created here, because SQLite would let others read it.
            target.touch(mode=0o600, exist_ok=False)
            await self._copy(target)
            yield target
        finally:
            with suppress(OSError):
                target.unlink(missing_ok=True)

    async def _copy(self, target: Path) -> None:
        try:
            async with reading(self._path) as copier:
                await copier.run(lambda db: copy_into(db, target))
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the store cannot be copied: {error}") from None


def copy_into(db: sqlite3.Connection, target: Path) -> None:
    """Write all of a database that is open for reading into a file, as of one moment."""
    # The store itself is still opened read-only.
    db.execute("PRAGMA query_only = OFF")
    db.execute("VACUUM INTO ?", (f"file:{quote(str(target))}?mode=rwc",))
    generation.unmark(target)
