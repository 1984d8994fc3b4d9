"""Reads of the audience for questions about it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from relay.store.audience.days import WEEK_MS, View
from relay.store.audience.sets import VIDEO_BITS
from relay.store.audience.span import Span
from relay.store.audience.tables import Numbers, Pairs, Place, RawView, Row, Rows
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable

COUNTED_TO = "coalesce((SELECT value FROM relay.state WHERE name = 'audience'), 0)"
"""The last event that the audience has counted."""

ROLLED_TO = "coalesce((SELECT value FROM relay.state WHERE name = 'audience_days'), 0)"

_EXTENT = "SELECT min(at), max(at) FROM relay.audience"
_VIDEO = "SELECT number FROM relay.videos WHERE id = %s"
_TITLES = "SELECT number, id, title FROM relay.videos WHERE number = ANY(%b::bigint[])"
Condition = tuple[str, list[Any]]


def all_of(*conditions: Condition) -> Condition:
    used = [condition for condition in conditions if None not in condition[1]]
    where = " AND ".join(sql for sql, _ in used) or "TRUE"
    return where, [value for _, each in used for value in each]


_UNCOUNTED = f"SELECT received_at FROM relay.events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT 1"
_DAYS = "SELECT day, source, step, {columns} FROM relay.audience_days WHERE {fits}"
_WEEK = f"d.day - d.day %% {WEEK_MS}"
_WHOLE = f"week >= %(since)s AND week <= %(until)s - {WEEK_MS}"
_OF_SOURCE = "(%(source)s::text IS NULL OR source = %(source)s)"
_WEEKS_AND_DAYS = f"""
SELECT week, source, step, {{columns}} FROM relay.audience_weeks WHERE {_WHOLE} AND {_OF_SOURCE}
UNION ALL
SELECT day, source, step, {{columns}} FROM relay.audience_days AS d
WHERE day >= %(since)s AND day < %(until)s AND {_OF_SOURCE} AND NOT EXISTS (
    SELECT 1 FROM relay.audience_weeks AS w
    WHERE w.week = {_WEEK} AND w.source = d.source AND w.step = d.step AND {_WHOLE}
)
"""
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM relay.audience AS a WHERE {fits} LIMIT %s) AS found"
_VIEWS = """
SELECT a.at, a.source, a.step, coalesce(a.video, 0), v.number, a.person
FROM relay.audience AS a LEFT JOIN relay.viewers AS v ON v.person = a.person WHERE {fits}
"""
_PAIRS = f"""
SELECT a.source, a.step,
    coalesce(array_agg(coalesce(a.video, 0) << {VIDEO_BITS} | v.number)
        FILTER (WHERE v.number IS NOT NULL), '{{{{}}}}'),
    coalesce(array_agg(coalesce(a.video, 0)) FILTER (WHERE v.number IS NULL), '{{{{}}}}')
FROM relay.audience AS a LEFT JOIN relay.viewers AS v ON v.person = a.person
WHERE {{fits}} GROUP BY a.source, a.step
"""
_NUMBERS = "step, count(DISTINCT person), count(*), count(*) - count(person)"
_STEPS = f"SELECT {_NUMBERS} FROM relay.audience WHERE {{fits}} GROUP BY step"
_GROUPS = f"SELECT {{group}}, {_NUMBERS} FROM relay.audience WHERE {{fits}} GROUP BY 1, step"
_AT = "SELECT {which}(at) FROM relay.audience WHERE {fits}"


class PostgresFunnelTables:
    """Fulfils `relay.store.audience.tables.FunnelTables`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def extent(self) -> tuple[int, int] | None:
        ((first_ms, last_ms),) = self._db.execute(_EXTENT).fetchall()
        return None if first_ms is None else (first_ms, last_ms)

    def video(self, id_: str) -> int | None:
        row = self._db.execute(_VIDEO, (storable(id_),)).fetchone()
        return None if row is None else int(row[0])

    def titles(self, videos: Sequence[int]) -> Mapping[int, tuple[str, str | None]]:
        rows = self._db.execute(_TITLES, (list(videos),))
        return {number: (id_, title) for number, id_, title in rows}

    def oldest_uncounted(self) -> int | None:
        return oldest_uncounted(self._db)

    def days(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        where, values = all_of(_within("day", span), ("source = %s", [source]))
        return self._db.execute(_DAYS.format(columns=columns, fits=where), values)

    def weeks(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        values = {"since": span.since_ms, "until": span.until_ms, "source": source}
        return self._db.execute(_WEEKS_AND_DAYS.format(columns=columns), values)

    def count(self, place: Place, source: str | None, video: int | None, *, limit: int) -> int:
        where, values = _placed(place, source, video)
        ((count,),) = self._db.execute(_COUNT.format(fits=where), (*values, limit)).fetchall()
        return int(count)

    def raw_views(self, place: Place, source: str | None, video: int | None) -> Iterable[RawView]:
        return views(self._db, *_placed(place, source, video))

    def pairs(self, place: Place, source: str | None) -> Iterable[Pairs]:
        where, values = _placed(place, source, None)
        return (Pairs(*row) for row in self._db.execute(_PAIRS.format(fits=where), values))

    def last_ms(self, rows: Rows) -> int | None:
        return self._at("max", rows)

    def first_ms(self, rows: Rows) -> int | None:
        return self._at("min", rows)

    def _at(self, which: str, rows: Rows) -> int | None:
        where, values = _selected(rows)
        ((ms,),) = self._db.execute(_AT.format(which=which, fits=where), values).fetchall()
        return None if ms is None else int(ms)

    def steps(self, rows: Rows) -> Iterable[tuple[str, *Numbers]]:
        where, values = _selected(rows)
        return self._db.execute(_STEPS.format(fits=where), values)

    def groups(self, rows: Rows, group: str) -> Iterable[tuple[Any, str, *Numbers]]:
        where, values = _selected(rows)
        sql = _GROUPS.format(group=group.replace("%", "%%"), fits=where)
        return self._db.execute(sql, values)


def oldest_uncounted(db: Database) -> int | None:
    """Return the receipt of the first uncounted event; None if all are counted."""
    row = db.execute(_UNCOUNTED).fetchone()
    return None if row is None else int(row[0])


def views(db: Database, where: str, values: Sequence[Any]) -> Iterator[RawView]:
    """Read rows that fit."""
    rows = db.execute(_VIEWS.format(fits=where), values)
    return (RawView(View(*row), person) for *row, person in rows)


def _placed(place: Place, source: str | None, video: int | None) -> Condition:
    side = "<=" if place.is_rolled_up else ">"
    return all_of(
        (f"a.event {side} {ROLLED_TO}", []),
        _within("a.at", place.span),
        ("a.source = %s", [source]),
        ("a.video = %s", [video]),
    )


def _within(column: str, span: Span) -> Condition:
    return f"{column} >= %s AND {column} < %s", [span.since_ms, span.until_ms]


def _selected(rows: Rows) -> Condition:
    video = None if rows.video is None else storable(rows.video)
    return all_of(
        ("at >= %s", [rows.since_ms]),
        ("at < %s", [rows.until_ms]),
        ("source = %s", [rows.source]),
        ("video = (SELECT number FROM relay.videos WHERE id = %s)", [video]),
    )
