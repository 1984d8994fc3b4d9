"""Reads of the audience's tables within one snapshot, for questions about it.

Rows of many people stay per engine: SQLite makes one row of JSON of them, because Python's lock
changes hands at each row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import msgspec
import orjson

from relay.store.audience.days import WEEK_MS, View
from relay.store.rows import Row
from relay.store.sql import Database, FilteredSql, Sql, Values

COUNTED_TO = "audience"
"""Name of the state that holds the last event that was counted."""

ROLLED_TO = "audience_days"
"""Name of the state that holds the last event in the audience by day."""

LAST_COUNTED = f"coalesce((SELECT value FROM main.state WHERE name = '{COUNTED_TO}'), 0)"
LAST_ROLLED_UP = f"coalesce((SELECT value FROM main.state WHERE name = '{ROLLED_TO}'), 0)"

Numbers = tuple[int, int, int]
"""People, events, and events without an address."""

DayColumns = Literal[
    "half_hours",
    "people, events, anonymous",
    "people, events, anonymous, viewers, videos",
    "viewers, videos",
]
"""Columns of a day that are read together."""


class Span(msgspec.Struct, frozen=True):
    """A time; the end is exclusive, and not before the start."""

    since_ms: int
    until_ms: int

    def __bool__(self) -> bool:
        return self.since_ms < self.until_ms

    def whole(self, unit_ms: int) -> Self:
        """Return the part that consists of whole units, which may be empty."""
        since_ms = -(-self.since_ms // unit_ms) * unit_ms
        if since_ms >= self.until_ms:
            return self.end()
        return type(self)(since_ms, max(since_ms, self.until_ms // unit_ms * unit_ms))

    def around(self, inner: Self) -> tuple[Self, Self]:
        """Return the parts of this span before and after `inner`."""
        make = type(self)
        return make(self.since_ms, inner.since_ms), make(inner.until_ms, self.until_ms)

    def end(self) -> Self:
        """Return the empty part at its end."""
        return type(self)(self.until_ms, self.until_ms)


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of the audience's rows; None selects all."""

    since_ms: int | None
    until_ms: int | None
    """Exclusive."""
    source: str | None
    video: str | None = None

    @property
    def values(self) -> Values:
        return {
            "since": self.since_ms,
            "until": self.until_ms,
            "source": self.source,
            "video_id": self.video,
        }


class RowRange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a time that are in the audience by day, or that are not in it yet."""

    span: Span
    is_rolled_up: bool
    source: str | None
    video: int | None = None
    """Its number."""

    @property
    def values(self) -> Values:
        return {**_values(self.span, self.source), "video": self.video}

    def select(self, statements: Mapping[bool, FilteredSql]) -> Sql:
        """Choose among the statements that `of_range` has made."""
        return statements[self.is_rolled_up].by(self.values)


class RawView(NamedTuple):
    """A row of the audience with the person's digest, because not every person has a number."""

    view: View
    person: int | None


class Pairs(NamedTuple):
    """Rows of one source and step: pairs of video and person, and videos of anonymous events."""

    source: str
    step: str
    pairs: Sequence[int]
    anonymous: Sequence[int]


def of_range(text: str) -> Mapping[bool, FilteredSql]:
    """Make statements of one on `audience AS a` with `{where}`, for `RowRange.select`."""
    conditions = {"source": "a.source = :source", "video": "a.video = :video"}
    return {
        is_rolled_up: FilteredSql(text.replace("{where}", f"{rows} AND {{where}}"), conditions)
        for is_rolled_up, rows in _RANGES.items()
    }


# Few rows are not in days yet: the sums keep the engines from the index of times for them.
_RANGES = {
    True: f"a.event <= {LAST_ROLLED_UP} AND a.at >= :since AND a.at < :until",
    False: f"a.event > {LAST_ROLLED_UP} AND a.at + 0 >= :since AND a.at + 0 < :until",
}
_OF_SOURCE = {"source": "source = :source"}
_OF_ROWS = {
    "since": "at >= :since",
    "until": "at < :until",
    **_OF_SOURCE,
    "video_id": "video = (SELECT number FROM main.videos WHERE id = :video_id)",
}
# SQLite takes each from the index, but both together from all of it.
_EXTENT = Sql("SELECT (SELECT min(at) FROM main.audience), (SELECT max(at) FROM main.audience)")
_VIDEO = Sql("SELECT number FROM main.videos WHERE id = :video_id")
_TITLES = Sql("""
SELECT number, id, title FROM main.videos
WHERE number IN (SELECT CAST(value AS bigint) FROM json_each(:numbers) AS x)
""")
_UNCOUNTED = Sql(f"""
SELECT received_at FROM main.events WHERE seq > {LAST_COUNTED} ORDER BY seq LIMIT 1
""")
_WHOLE = f"week >= :since AND week <= :until - {WEEK_MS}"


def _of_columns(text: str) -> Mapping[DayColumns, FilteredSql]:
    return {
        columns: FilteredSql(text.replace("{columns}", columns), _OF_SOURCE)
        for columns in get_args(DayColumns)
    }


_DAYS = _of_columns("""
SELECT day, source, step, {columns} FROM main.audience_days
WHERE day >= :since AND day < :until AND {where}
""")
_WEEKS_AND_DAYS = _of_columns(f"""
SELECT week, source, step, {{columns}} FROM main.audience_weeks WHERE {_WHOLE} AND {{where}}
UNION ALL
SELECT day, source, step, {{columns}} FROM main.audience_days AS d
WHERE day >= :since AND day < :until AND {{where}} AND NOT EXISTS (
    SELECT 1 FROM main.audience_weeks AS w
    WHERE w.week = d.day - d.day % {WEEK_MS} AND w.source = d.source AND w.step = d.step
        AND {_WHOLE}
)
""")
_COUNT = of_range("""
SELECT count(*) FROM (SELECT 1 FROM main.audience AS a WHERE {where} LIMIT :limit) AS found
""")
_NUMBERS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_STEPS = FilteredSql(
    f"SELECT {_NUMBERS} FROM main.audience WHERE {{where}} GROUP BY step", _OF_ROWS
)
_FIRST = FilteredSql("SELECT min(at) FROM main.audience WHERE {where}", _OF_ROWS)
_LAST = FilteredSql("SELECT max(at) FROM main.audience WHERE {where}", _OF_ROWS)


def _by_group(group: str) -> FilteredSql:
    # `coalesce` keeps SQLite from a walk by the column's index, which reads the table in a random
    # order.
    return FilteredSql(
        f"""
SELECT coalesce({group}, NULL), {_NUMBERS} FROM main.audience WHERE {{where}} GROUP BY 1, step
""",
        _OF_ROWS,
    )


_GROUPS = {group: _by_group(group) for group in ("source", "video")}


class AudienceReads(ABC):
    """Reads of one snapshot."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def extent(self) -> tuple[int, int] | None:
        """Return the times of the first and the last row."""
        ((first_ms, last_ms),) = self._db.execute(_EXTENT).fetchall()
        return None if first_ms is None else (first_ms, last_ms)

    def video(self, id_: str) -> int | None:
        """Return the number of a video."""
        row = self._db.execute(_VIDEO, {"video_id": id_}).fetchone()
        return None if row is None else int(row[0])

    def titles(self, videos: Sequence[int]) -> Mapping[int, tuple[str, str | None]]:
        """Return ids and titles by number."""
        rows = self._db.execute(_TITLES, {"numbers": json_list(videos)})
        return {number: (id_, title) for number, id_, title in rows}

    def oldest_uncounted(self) -> int | None:
        """Return the receipt of the first uncounted event; None if all are counted."""
        row = self._db.execute(_UNCOUNTED).fetchone()
        return None if row is None else int(row[0])

    def days(self, columns: DayColumns, span: Span, source: str | None) -> Iterable[Row]:
        """Return day, source, step and columns of each day of a time."""
        values = _values(span, source)
        return self._db.execute(_DAYS[columns].by(values), values)

    def weeks(self, columns: DayColumns, span: Span, source: str | None) -> Iterable[Row]:
        """Return the same of the whole weeks of a time, and of its other days."""
        values = _values(span, source)
        return self._db.execute(_WEEKS_AND_DAYS[columns].by(values), values)

    def count(self, rows: RowRange, *, limit: int) -> int:
        """Count rows, up to a limit."""
        values = {**rows.values, "limit": limit}
        ((count,),) = self._db.execute(rows.select(_COUNT), values).fetchall()
        return int(count)

    @abstractmethod
    def raw_views(self, rows: RowRange) -> Iterable[RawView]: ...

    @abstractmethod
    def pairs(self, rows: RowRange) -> Iterable[Pairs]: ...

    def first_ms(self, rows: Rows) -> int | None:
        """Return the time of the first of some rows."""
        return self._at(_FIRST, rows)

    def last_ms(self, rows: Rows) -> int | None:
        """Return the time of the last of some rows."""
        return self._at(_LAST, rows)

    def _at(self, statement: FilteredSql, rows: Rows) -> int | None:
        ((ms,),) = self._db.execute(statement.by(rows.values), rows.values).fetchall()
        return None if ms is None else int(ms)

    def steps(self, rows: Rows) -> Iterable[tuple[str, *Numbers]]:
        """Count rows by step."""
        return self._db.execute(_STEPS.by(rows.values), rows.values)

    def groups(self, rows: Rows, group: str) -> Iterable[tuple[Any, str, *Numbers]]:
        """Count rows by a column, or another SQL expression, and by step."""
        statement = _GROUPS.get(group) or _by_group(group)
        return self._db.execute(statement.by(rows.values), rows.values)


def json_list(numbers: Iterable[int]) -> str:
    """Return a list of numbers as statements take it."""
    return orjson.dumps([*numbers]).decode()


def _values(span: Span, source: str | None) -> dict[str, Any]:
    return {"since": span.since_ms, "until": span.until_ms, "source": source}
