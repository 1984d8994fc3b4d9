"""SQL that both engines read: SQLite as it is, PostgreSQL by the rules of its dialect."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

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

    @classmethod
    def of_engine(cls, text: str) -> Self:
        """Take what only the engine in use has to understand."""
        return super().__new__(cls, text)


class Condition(NamedTuple):
    """An expression, and the values that it names."""

    sql: str
    values: Values


ALL = Condition("TRUE", {})
"""What everything fits."""

NONE = Condition("FALSE", {})
"""What nothing fits."""


def all_of(*conditions: Condition) -> Condition:
    """Join conditions; one that has a value of None is left out, because nobody asked for it.

    It costs nothing then; `:x IS NULL OR …` would keep the engines from their indexes.
    """
    used = [each for each in conditions if each != ALL and None not in each.values.values()]
    return joined(" AND ", used) if used else ALL


def any_of(conditions: Sequence[Condition]) -> Condition:
    """Join conditions of which one is enough."""
    sql, values = joined(" OR ", conditions)
    return Condition(f"({sql})", values)


def joined(operator: str, conditions: Sequence[Condition]) -> Condition:
    """Join expressions by what stands between them."""
    values = {name: value for each in conditions for name, value in each.values.items()}
    return Condition(operator.join(each.sql for each in conditions), values)


def by_name(conditions: Mapping[str, str], values: Values) -> Condition:
    """Join conditions that are named after their only value."""
    return all_of(*(Condition(sql, {name: values.get(name)}) for name, sql in conditions.items()))


class FilteredSql:
    """A statement with `{where}`, in whose place stand conditions."""

    def __init__(self, text: str, conditions: Mapping[str, str] = MappingProxyType({})) -> None:
        """`conditions` are those of both engines, named after their values."""
        self._text = text
        self._conditions = conditions
        self.strictest = self.by(conditions)

    def by(self, values: Values) -> Sql:
        """Return the statement for these values; one that is None selects nothing."""
        return Sql(self._text.format(where=by_name(self._conditions, values).sql))

    def where(self, condition: Condition) -> Sql:
        """Return the statement with a condition that the engine in use has added to."""
        return Sql.of_engine(self._text.format(where=condition.sql))


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
