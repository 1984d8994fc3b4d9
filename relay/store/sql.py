"""SQL that both engines read: SQLite as it is, PostgreSQL by the rules of its dialect."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

from relay.store.rows import Row

_REFUSED = re.compile(
    r"\?|--|::|%\(|/\*(?!postgres )|\bLIKE\b|\bGLOB\b|\bLIMIT -|\blower\(|\bAS integer\b",
    re.IGNORECASE,
)
"""What one of the engines refuses, or reads in another way."""

Values = Mapping[str, Any]
"""By name; a statement may use only some of them."""


class Sql(str):
    """A statement for both engines, with values as `:name` and tables as `main.events`.

    `relay.store.postgres.dialect` lists what PostgreSQL reads in place of what only SQLite knows.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Raise ValueError for SQL that does not mean the same to both."""
        if refused := _REFUSED.search(text):
            raise ValueError(f"{refused[0]!r} is not for both engines: {text}")
        return super().__new__(cls, text)


class FilteredSql:
    """A statement with `{where}`, in whose place stand the conditions that have a value.

    One that is left out costs nothing; `:x IS NULL OR …` would keep the engines from their indexes.
    """

    def __init__(self, text: str, conditions: Mapping[str, str]) -> None:
        """`conditions` are named after their values."""
        self._text = text
        self._conditions = conditions
        self.strictest = self.by(conditions)

    def by(self, values: Values) -> Sql:
        """Return the statement for these values; one that is None selects nothing."""
        used = [sql for name, sql in self._conditions.items() if values.get(name) is not None]
        return Sql(self._text.format(where=" AND ".join(used) or "TRUE"))


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Number of rows that it changed."""
        ...

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class Database(Protocol):
    """One connection, as functions see it that run on its thread."""

    def execute(self, text: Sql, values: Values = ..., /) -> Cursor: ...
