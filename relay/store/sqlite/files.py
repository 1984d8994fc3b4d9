"""The store's files on their disk, looked at around each transaction."""

from pathlib import Path

from relay.store.sqlite import disk
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.truncation import FileLength
from relay.store.sqlite.wal import Wal

LONG_FRAMES = 1000
"""Pages in the log from which on it is written home; SQLite's own number."""


class Files:
    """The database, its log and its index; made after a first commit, closed after SQLite."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._extent = FileLength(path)
        self._wal = Wal(disk.real(path))
        self.close = self._wal.close

    def require(self, db: sqlite3.Connection) -> None:
        """Raises StoreBroken where the database or its log is not what SQLite takes it for.

        To be asked of the connection that writes, between two of its transactions.
        """
        self._extent.require(db)
        self._wal.require()

    def require_all(self, db: sqlite3.Connection) -> None:
        """As `require`, and of the index as well, on which no acknowledgement depends."""
        self._wal.require_index()
        self.require(db)

    def log_is_long(self) -> bool:
        """Whether the log should be written home, as of the last look."""
        return self._wal.frames >= LONG_FRAMES

    def shortage(self) -> str | None:
        """As `disk.shortage`."""
        return disk.shortage(self._path)
