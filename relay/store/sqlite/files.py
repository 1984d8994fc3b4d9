"""Checks of the store's files, around each transaction."""

from pathlib import Path

from relay.core.errors import StoreBroken
from relay.store.sqlite import disk
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.wal import Wal

CHECKPOINT_FRAMES = 1000
"""Pages in the log from which it is checkpointed; SQLite's own default."""


class Files:
    """The database, its log and its index; opened after a first commit, closed after SQLite."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._length = _Length(path)
        self._wal = Wal(disk.real(path))
        self.close = self._wal.close

    def require(self, db: sqlite3.Connection) -> None:
        """Raise StoreBroken if the database or its log differs from SQLite's view of it.

        Call it on the writing connection, between two of its transactions.
        """
        self._length.require(db)
        self._wal.require()

    def require_all(self, db: sqlite3.Connection) -> None:
        """Check also the index, on which no acknowledgement depends."""
        self._wal.require_index()
        self.require(db)

    def has_commit(self) -> bool:
        """Whether a transaction was committed since the last check."""
        return self._wal.has_grown()

    def log_is_long(self) -> bool:
        """Whether the log should be checkpointed, as of the last check."""
        return self._wal.frames >= CHECKPOINT_FRAMES

    def log_bytes(self) -> int:
        """Return what the log holds, as of the last check."""
        return self._wal.bytes

    def shortage(self) -> str | None:
        """Return `disk.shortage` of the store's path."""
        return disk.shortage(self._path)


class _Length:
    """Compares the file's length, which only our checkpoints may reduce, with the last check's.

    SQLite does not notice a truncated file while the missing pages are in its cache or its log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.stat()

    def require(self, db: sqlite3.Connection) -> None:
        """Raise StoreMoved for another file at the path, and StoreBroken for a truncated one.

        Truncated means shorter than before and than the pages in use.
        Call it on the writing connection, between two of its transactions: it alone checkpoints,
        and a checkpoint that shortens the file leaves exactly the pages in use.
        A file that is only shorter than the pages in use waits for a checkpoint, and is sound.
        """
        now = disk.require_in_place(self._path, self._file)
        if now.st_size < self._file.st_size and now.st_size < _bytes_in_use(db):
            raise StoreBroken(f"the file {self._path} was cut short while it was in use")
        self._file = now


def _bytes_in_use(db: sqlite3.Connection) -> int:
    (pages,), (size,) = (db.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    return int(pages) * int(size)
