"""The length of the database's own file, which nothing but our checkpoints may take from."""

from os.path import samestat
from pathlib import Path

from relay.core.errors import StoreBroken, StoreMoved
from relay.store.sqlite.driver import sqlite3


class FileLength:
    """How long the file was when it was last looked at; it has to be there.

    A file that somebody cuts short goes unnoticed by SQLite for as long as what is missing is in
    its memory or its log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.stat()

    def require(self, db: sqlite3.Connection) -> None:
        """Raises StoreMoved where the path leads to another file, or StoreBroken for a shorter one.

        Shorter means shorter than before and than its pages in use.
        To be asked of the connection that writes, between two of its transactions: it alone makes
        checkpoints, and one that shortens the file leaves the pages that are in use then, exactly.
        A file that is only shorter than the pages in use waits for a checkpoint, and is sound.
        """
        try:
            now = self._path.stat()
        except OSError:
            raise StoreMoved(f"the file {self._path} was removed or replaced") from None
        if not samestat(now, self._file):
            raise StoreMoved(f"the file {self._path} was removed or replaced")
        if now.st_size < self._file.st_size and now.st_size < _bytes_in_use(db):
            raise StoreBroken(f"the file {self._path} was cut short while it was in use")
        self._file = now


def _bytes_in_use(db: sqlite3.Connection) -> int:
    (pages,), (size,) = (db.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    return int(pages) * int(size)
