"""Checks of the store's files, around each transaction."""

from pathlib import Path

from relay.store.sqlite import disk
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.truncation import FileLength
from relay.store.sqlite.wal import Wal

CHECKPOINT_FRAMES = 1000
"""Pages in the log from which it is checkpointed; SQLite's own default."""


class Files:
    """The database, its log and its index; opened after a first commit, closed after SQLite."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._length = FileLength(path)
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
