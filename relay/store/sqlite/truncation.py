"""Check of the database file's length, which only our checkpoints may reduce."""

from pathlib import Path

from relay.core.errors import StoreBroken
from relay.store.sqlite import disk
from relay.store.sqlite.driver import sqlite3


class FileLength:
    """Compares the length of the file with that of the last check.

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
