"""Many rows in one statement, which SQLite executes without Python's lock."""

from collections.abc import Sequence
from functools import cache
from itertools import chain

from relay.store.sqlite.driver import Row, sqlite3

ROWS_MAX = 64
"""Maximum rows per statement; there is a prepared statement for each number up to it."""


def write(db: sqlite3.Connection, sql: str, rows: Sequence[Row]) -> int:
    """Run a statement with `{rows}` in place of its values; return the number of changed rows."""
    changed = 0
    for start in range(0, len(rows), ROWS_MAX):
        part = rows[start : start + ROWS_MAX]
        statement = _statement(sql, len(part), len(part[0]))
        changed += db.execute(statement, tuple(chain.from_iterable(part))).rowcount
    return changed


@cache
def _statement(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.format(rows=", ".join([row] * rows))
