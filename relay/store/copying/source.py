"""The store on SQLite as the source of a copy: locked, and read in the order of its keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from relay.core.errors import StoreBroken, StoreRefused, StoreUnavailable
from relay.store.copying.tables import ROW_ID, STATE_LEFT_OUT, CopiedTable
from relay.store.migrations import Schema, require_served
from relay.store.postgres.text import storable
from relay.store.sqlite import disk, schema
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.preflight import foreign_log
from relay.store.sqlite.settings import SqliteSettings


class SourceStore:
    """One store, which no relay can open meanwhile."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def columns(self, table: CopiedTable) -> tuple[str, ...]:
        """Return the target's names of the columns."""
        columns = tuple(row[1] for row in self._db.execute(f"PRAGMA table_info({table.name})"))
        return columns if table.row_id is None else (table.row_id, *columns)

    def rows(self, table: CopiedTable, after: Row | None = None) -> Iterator[Row]:
        """Yield rows beyond a key, in the order of the key, as the target stores them."""
        row_id = table.row_id
        names = [ROW_ID if name == row_id else name for name in self.columns(table)]
        key = [ROW_ID if name == row_id else name for name in table.key]
        conditions = (
            [] if after is None else [f"({', '.join(key)}) > ({', '.join('?' * len(key))})"]
        )
        if table.name == "state":
            left_out = ", ".join(f"'{name}'" for name in sorted(STATE_LEFT_OUT))
            conditions.append(f"name NOT IN ({left_out})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {', '.join(names)} FROM {table.name}{where} ORDER BY {', '.join(key)}"
        for row in self._db.execute(query, after or ()):
            yield tuple(storable(value) if isinstance(value, str) else value for value in row)

    def last_number(self, table: CopiedTable) -> int:
        """Return the highest number that a table has ever given, as far as SQLite knows."""
        key = ROW_ID if table.row_id else table.numbered
        (highest,) = self._db.execute(f"SELECT max({key}) FROM {table.name}").fetchone()
        cursor = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,))
        (last,) = cursor.fetchone() or (None,)
        return max(highest or 0, last or 0)

    def fingerprint(self) -> int:
        """Return a number that is this store's own, by the random keys in it."""
        digest = sha256()
        for name, value in self._db.execute("SELECT name, value FROM keys ORDER BY name"):
            digest.update(f"{name}\0".encode() + value)
        return int.from_bytes(digest.digest()[:8], "big") >> 1

    def require_newest(self) -> None:
        """Raise StoreUnavailable for an older schema, which a start of this relay migrates.

        Raises StoreTooNew for one that a newer relay wrote.
        """
        (number,) = self._db.execute("SELECT max(number) FROM migrations").fetchone()
        newest = schema.steps()[-1].number
        require_served("its schema", Schema(number, number), newest=newest)
        if number < newest:
            raise StoreUnavailable(
                f"its schema is number {number}, this relay's is {newest}: start this relay on it "
                "once, and stop it"
            )


@contextmanager
def opened(settings: SqliteSettings) -> Iterator[SourceStore]:
    """Lock and open the store for the block.

    Raises StoreLocked, StoreRefused for the log of another one, and StoreBroken for no store.
    """
    path = Path(settings.path)
    if not path.is_file():
        raise StoreBroken(f"there is no store at {path}")
    try:
        lock = disk.lock(path)
    except OSError as error:
        raise StoreBroken(f"the store {path} cannot be locked: {error}") from None
    with lock:
        if (foreign := foreign_log(path)) is not None:
            raise StoreRefused(f"the store {path} cannot be read: {foreign}")
        try:
            db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
            try:
                yield SourceStore(db)
            finally:
                db.close()
        except sqlite3.Error as error:
            raise StoreBroken(f"the store {path} cannot be read: {error}") from None
