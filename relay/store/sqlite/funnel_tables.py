"""Reads of the audience for questions about it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from relay.store.audience.days import WEEK_MS, View
from relay.store.audience.sets import VIDEO_BITS
from relay.store.audience.span import Span
from relay.store.audience.tables import Numbers, Pairs, Place, RawView, Rows
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import Row, sqlite3

ROLLED_TO = "coalesce((SELECT value FROM state WHERE name = 'audience_days'), 0)"

# SQLite takes each from the index, but both together from all of it.
_EXTENT = "SELECT (SELECT min(at) FROM audience), (SELECT max(at) FROM audience)"
_VIDEO = "SELECT number FROM videos WHERE id = ?"
_TITLES = "SELECT number, id, title FROM videos WHERE number IN (SELECT value FROM json_each(?))"
Condition = tuple[str, list[Any]]


def all_of(*conditions: Condition) -> Condition:
    used = [condition for condition in conditions if None not in condition[1]]
    where = " AND ".join(sql for sql, _ in used) or "TRUE"
    return where, [value for _, each in used for value in each]


_UNCOUNTED = f"SELECT received_at FROM events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT 1"
_DAYS = "SELECT day, source, step, {columns} FROM audience_days WHERE {fits}"
_WEEK = f"d.day - d.day % {WEEK_MS}"
_WHOLE = f"week >= :since AND week <= :until - {WEEK_MS}"
_WEEKS_AND_DAYS = f"""
SELECT week, source, step, {{columns}} FROM audience_weeks
WHERE {_WHOLE} AND (:source IS NULL OR source = :source)
UNION ALL
SELECT day, source, step, {{columns}} FROM audience_days AS d
WHERE day >= :since AND day < :until AND (:source IS NULL OR source = :source) AND NOT EXISTS (
    SELECT 1 FROM audience_weeks AS w
    WHERE w.week = {_WEEK} AND w.source = d.source AND w.step = d.step AND {_WHOLE}
)
"""
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM audience AS a WHERE {fits} LIMIT ?)"
# One row, because Python's lock changes hands at each row.
_VIEWS = """
SELECT json_group_array(
    json_array(a.at, a.source, a.step, ifnull(a.video, 0), v.number, a.person)
)
FROM audience AS a LEFT JOIN viewers AS v ON v.person = a.person WHERE {fits}
"""
_PAIRS = f"""
SELECT json_group_array(json_array(source, step, json(pairs), json(anonymous))) FROM (
    SELECT a.source, a.step,
        json_group_array(ifnull(a.video, 0) << {VIDEO_BITS} | v.number)
            FILTER (WHERE v.number IS NOT NULL) AS pairs,
        json_group_array(ifnull(a.video, 0)) FILTER (WHERE v.number IS NULL) AS anonymous
    FROM audience AS a LEFT JOIN viewers AS v ON v.person = a.person
    WHERE {{fits}} GROUP BY a.source, a.step
)
"""
_NUMBERS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_STEPS = f"SELECT {_NUMBERS} FROM audience WHERE {{fits}} GROUP BY step"
# The `+` keeps SQLite from a walk by the column's index, which reads the table in a random order.
_GROUPS = f"SELECT {{group}}, {_NUMBERS} FROM audience WHERE {{fits}} GROUP BY +{{group}}, step"
_AT = "SELECT {which}(at) FROM audience WHERE {fits}"


class SqliteFunnelTables:
    """Fulfils `relay.store.audience.tables.FunnelTables`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def extent(self) -> tuple[int, int] | None:
        first_ms, last_ms = self._db.execute(_EXTENT).fetchone()
        return None if first_ms is None else (first_ms, last_ms)

    def video(self, id_: str) -> int | None:
        row = self._db.execute(_VIDEO, (id_,)).fetchone()
        return None if row is None else int(row[0])

    def titles(self, videos: Sequence[int]) -> Mapping[int, tuple[str, str | None]]:
        rows = self._db.execute(_TITLES, (orjson.dumps(videos).decode(),))
        return {number: (id_, title) for number, id_, title in rows}

    def oldest_uncounted(self) -> int | None:
        return oldest_uncounted(self._db)

    def days(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        where, values = all_of(_within("day", span), ("source = ?", [source]))
        return self._db.execute(_DAYS.format(columns=columns, fits=where), values)

    def weeks(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        values = {"since": span.since_ms, "until": span.until_ms, "source": source}
        return self._db.execute(_WEEKS_AND_DAYS.format(columns=columns), values)

    def count(self, place: Place, source: str | None, video: int | None, *, limit: int) -> int:
        where, values = _placed(place, source, video)
        row = self._db.execute(_COUNT.format(fits=where), (*values, limit)).fetchone()
        return int(row[0])

    def raw_views(self, place: Place, source: str | None, video: int | None) -> Iterable[RawView]:
        return views(self._db, *_placed(place, source, video))

    def pairs(self, place: Place, source: str | None) -> Iterable[Pairs]:
        where, values = _placed(place, source, None)
        (lists,) = self._db.execute(_PAIRS.format(fits=where), values).fetchone()
        return (Pairs(*each) for each in orjson.loads(lists))

    def last_ms(self, rows: Rows) -> int | None:
        return self._at("max", rows)

    def first_ms(self, rows: Rows) -> int | None:
        return self._at("min", rows)

    def _at(self, which: str, rows: Rows) -> int | None:
        where, values = _selected(rows)
        row = self._db.execute(_AT.format(which=which, fits=where), values).fetchone()
        return None if row[0] is None else int(row[0])

    def steps(self, rows: Rows) -> Iterable[tuple[str, *Numbers]]:
        where, values = _selected(rows)
        return self._db.execute(_STEPS.format(fits=where), values)

    def groups(self, rows: Rows, group: str) -> Iterable[tuple[Any, str, *Numbers]]:
        where, values = _selected(rows)
        return self._db.execute(_GROUPS.format(group=group, fits=where), values)


def oldest_uncounted(db: sqlite3.Connection) -> int | None:
    """Return the receipt of the first uncounted event; None if all are counted."""
    row = db.execute(_UNCOUNTED).fetchone()
    return None if row is None else int(row[0])


def views(db: sqlite3.Connection, where: str, values: Sequence[Any]) -> Iterator[RawView]:
    """Read rows that fit."""
    (rows,) = db.execute(_VIEWS.format(fits=where), values).fetchone()
    return (RawView(View(*row), person) for *row, person in orjson.loads(rows))


def _placed(place: Place, source: str | None, video: int | None) -> Condition:
    # The `+` keeps SQLite from the index of times: few rows are that new.
    column, side = ("a.at", "<=") if place.is_rolled_up else ("+a.at", ">")
    return all_of(
        (f"a.event {side} {ROLLED_TO}", []),
        _within(column, place.span),
        ("a.source = ?", [source]),
        ("a.video = ?", [video]),
    )


def _within(column: str, span: Span) -> Condition:
    return f"{column} >= ? AND {column} < ?", [span.since_ms, span.until_ms]


def _selected(rows: Rows) -> Condition:
    return all_of(
        ("at >= ?", [rows.since_ms]),
        ("at < ?", [rows.until_ms]),
        ("source = ?", [rows.source]),
        ("video = (SELECT number FROM videos WHERE id = ?)", [rows.video]),
    )
