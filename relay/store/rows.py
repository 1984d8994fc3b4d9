"""Many rows in one statement: SQLite works on them without Python's lock, which others then have."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain

from relay.store.driver import Row, sqlite3

ROWS_MAX = 256


def write(db: sqlite3.Connection, sql: str, rows: Sequence[Row]) -> int:
    """Run a statement whose `{rows}` stands for a list of values; return how many rows changed."""
    changed = 0
    for part in _parts(rows):
        statement = sql.format(rows=_placeholders(len(part), len(part[0])))
        changed += db.execute(statement, tuple(chain.from_iterable(part))).rowcount
    return changed


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    # Powers of two only, so that there are few statements, and all of them stay prepared.
    start = 0
    while start < len(rows):
        size = min(ROWS_MAX, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


@cache
def _placeholders(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)
