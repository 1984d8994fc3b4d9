"""Reads and writes of many rows of the audience, each in few statements that return one row."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from relay.store.audience import counting
from relay.store.audience.counting import Uncounted
from relay.store.audience.days import COLUMNS, Key, View
from relay.store.audience.reads import LAST_COUNTED, Pairs, RawView, RowRange, of_range
from relay.store.audience.sets import VIDEO_BITS
from relay.store.audience.writes import AudienceWrites, Changed, CountedView
from relay.store.rows import SUPERSEDED, Row, within_bytes
from relay.store.sql import Sql, Values
from relay.store.sqlite import bulk
from relay.store.sqlite.driver import sqlite3

# A superseded reconstruction is counted by its original alone.
_UNCOUNTED = f"""
SELECT seq, source, kind, received_at,
    iif((kind = 'lead.captured' OR kind GLOB 'video.*') AND reconstructed < {SUPERSEDED},
        body, NULL),
    reconstructed > 0
FROM events WHERE seq > {LAST_COUNTED} AND seq <= ? ORDER BY seq LIMIT {counting.STEP_ROWS}
"""
_NAME = """
INSERT INTO videos (id, title) VALUES {rows}
ON CONFLICT (id) DO UPDATE SET title = excluded.title
WHERE excluded.title IS NOT NULL AND excluded.title IS NOT title
"""
_NUMBERS = "SELECT id, number FROM videos WHERE id IN (SELECT value FROM json_each(?))"
_CHANGED = """
INSERT INTO library (source, video, change, event, at) VALUES {rows}
ON CONFLICT DO UPDATE SET event = excluded.event, at = max(at, excluded.at)
"""
_ADD = """
INSERT INTO audience (event, source, video, step, person, at) VALUES {rows}
ON CONFLICT DO NOTHING
"""
# One row, because Python's lock changes hands at each row.
_VIEWS = """
SELECT json_group_array(
    json_array(a.at, a.source, a.step, coalesce(a.video, 0), v.number, a.person)
)
FROM main.audience AS a LEFT JOIN main.viewers AS v ON v.person = a.person WHERE {where}
"""
_RAW_VIEWS = of_range(_VIEWS)
_PAIRS = of_range(f"""
SELECT json_group_array(json_array(source, step, json(pairs), json(anonymous))) FROM (
    SELECT a.source, a.step,
        json_group_array(coalesce(a.video, 0) << {VIDEO_BITS} | v.number)
            FILTER (WHERE v.number IS NOT NULL) AS pairs,
        json_group_array(coalesce(a.video, 0)) FILTER (WHERE v.number IS NULL) AS anonymous
    FROM main.audience AS a LEFT JOIN main.viewers AS v ON v.person = a.person
    WHERE {{where}} GROUP BY a.source, a.step
)
""")
_NEW_PEOPLE = Sql("""
SELECT json_group_array(DISTINCT a.person) FROM main.audience AS a
WHERE a.event > :after AND a.event <= :upto AND a.person IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM main.viewers AS v WHERE v.person = a.person)
""")
_DAY = f"SELECT {COLUMNS} FROM audience_days WHERE day = ? AND source = ? AND step = ?"
_SAVE_DAY = f"""
INSERT INTO audience_days (day, source, step, events, anonymous, {COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    events = excluded.events, anonymous = excluded.anonymous, people = excluded.people,
    half_hours = excluded.half_hours, viewers = excluded.viewers, videos = excluded.videos
"""
_DROP_WEEK = "DELETE FROM audience_weeks WHERE week = ? AND source = ? AND step = ?"


def uncounted(db: sqlite3.Connection, upto: int) -> list[Uncounted]:
    """Return the next events to count, as many as one transaction takes."""
    found = db.execute(_UNCOUNTED, (upto,))
    rows = within_bytes(found, counting.STEP_BYTES, lambda row: len(row[4] or b""))
    return [Uncounted(*row) for row in rows]


class SqliteAudienceTables(AudienceWrites):
    """The tables in one transaction, or in one snapshot."""

    _db: sqlite3.Connection

    def raw_views(self, rows: RowRange) -> Iterator[RawView]:
        return self._raw_views(rows.select(_RAW_VIEWS), rows.values)

    def _raw_views(self, sql: Sql, values: Values) -> Iterator[RawView]:
        return (RawView(View(*row), person) for *row, person in self._list(sql, values))

    def pairs(self, rows: RowRange) -> Iterator[Pairs]:
        return (Pairs(*each) for each in self._list(rows.select(_PAIRS), rows.values))

    def name_videos(self, titles: Mapping[str, str | None]) -> Mapping[str, int]:
        bulk.write(self._db, _NAME, list(titles.items()))
        ids = orjson.dumps(list(titles)).decode()
        return dict(self._db.execute(_NUMBERS, (ids,)).fetchall())

    def add_views(self, views: Sequence[CountedView]) -> None:
        bulk.write(self._db, _ADD, views)

    def add_changes(self, changes: Sequence[Changed]) -> None:
        bulk.write(self._db, _CHANGED, changes)

    def new_people(self, after: int, upto: int) -> Sequence[int]:
        return self._list(_NEW_PEOPLE, {"after": after, "upto": upto})

    def views_of(self, person: int) -> Iterable[View]:  # noqa: ARG002
        # No row is added to a day during an erasure, and a search of all rows holds others up.
        return ()

    def _views(self, where: str, values: Values) -> Iterator[View]:
        return (view for view, _ in self._raw_views(Sql(_VIEWS.format(where=where)), values))

    def _list(self, sql: Sql, values: Values) -> list[Any]:
        rows: list[Any] = orjson.loads(self._db.execute(sql, values).fetchone()[0])
        return rows

    def stored_days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        rows = ((key, self._db.execute(_DAY, key).fetchone()) for key in keys)
        return {key: row for key, row in rows if row is not None}

    def save_days(self, days: Mapping[Key, Row]) -> None:
        self._db.executemany(_SAVE_DAY, [(*key, *columns) for key, columns in days.items()])

    def drop_weeks(self, weeks: Collection[Key]) -> None:
        self._db.executemany(_DROP_WEEK, weeks)
