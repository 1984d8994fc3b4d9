"""A copy of the whole store as it is at one moment, made while the relay goes on."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from relay.core.errors import StoreError, StoreFull
from relay.store.sqlite import disk
from relay.store.sqlite.driver import open_reader, sqlite3

_SUFFIX = ".backup-"


class SqliteBackups:
    """Copies lie beside the store for as long as somebody reads them."""

    def __init__(self, path: Path, *, min_free: int) -> None:
        self._path = path
        self._min_free = min_free

    def clear(self) -> None:
        """Remove what a relay that was killed has left."""
        for left in self._path.parent.glob(f"{self._path.name}{_SUFFIX}*"):
            left.unlink(missing_ok=True)

    @asynccontextmanager
    async def copied(self) -> AsyncIterator[Path]:
        """A sound copy without free pages, gone when the block ends.

        Raises StoreFull where it would leave less than the floor, and StoreError.
        """
        target = self._path.with_name(f"{self._path.name}{_SUFFIX}{secrets.token_hex(8)}")
        room = disk.free_bytes(self._path) - self._min_free
        if room < disk.size_bytes(self._path):
            raise StoreFull("there is no room for a copy beside the store: it needs as much again")
        try:
            # Before SQLite opens it, which would let others read it.
            target.touch(mode=0o600, exist_ok=False)
            await self._copy(target)
            yield target
        finally:
            with suppress(OSError):
                target.unlink(missing_ok=True)

    async def _copy(self, target: Path) -> None:
        try:
            copier = await open_reader(self._path)
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot be read: {error}") from None
        try:
            await copier.run(lambda db: _copy_into(db, target))
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot be copied: {error}") from None
        finally:
            await copier.close()


def _copy_into(db: sqlite3.Connection, target: Path) -> None:
    # The store itself stays opened for reading only.
    db.execute("PRAGMA query_only = OFF")
    db.execute("VACUUM INTO ?", (f"file:{quote(str(target))}?mode=rwc",))
