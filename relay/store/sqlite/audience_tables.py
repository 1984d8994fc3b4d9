"""Writes of the audience: its rows, made of events, and its days and weeks, made of the rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import orjson

from relay.core.minutes import DAY_MS
from relay.store.audience import counting
from relay.store.audience.days import COLUMNS, WEEK_MS, Key, View
from relay.store.audience.tables import ROLLED_TO, Changed, CountedView, Uncounted
from relay.store.rows import SUPERSEDED, within_bytes
from relay.store.sqlite import bulk, funnel_tables, queries
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import Row, sqlite3

# A superseded reconstruction is counted by its original alone.
_UNCOUNTED = f"""
SELECT seq, source, kind, received_at,
    iif((kind = 'lead.captured' OR kind GLOB 'video.*') AND reconstructed < {SUPERSEDED},
        body, NULL),
    reconstructed > 0
FROM events WHERE seq > {COUNTED_TO} AND seq <= ? ORDER BY seq LIMIT {counting.STEP_ROWS}
"""
_LAST_EVENT = "SELECT coalesce(max(seq), 0) FROM events"
_SUPERSEDED = f"""
SELECT json_group_array(event) FROM (
    SELECT a.event FROM events e CROSS JOIN audience a ON a.event = e.seq
    WHERE e.reconstructed = {SUPERSEDED} LIMIT {counting.UNCOUNTED_ROWS}
)
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
_DAY_EVENTS = """
SELECT coalesce(sum(events), 0) FROM audience_days
WHERE day = (SELECT max(day) FROM audience_days)
"""
_NEXT = """
SELECT count(*), max(event)
FROM (SELECT event FROM audience WHERE event > ? ORDER BY event LIMIT ?)
"""
# One row, because Python's lock changes hands at each row.
_NEW_PEOPLE = """
SELECT json_group_array(DISTINCT a.person) FROM audience AS a
WHERE a.event > ? AND a.event <= ? AND a.person IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM viewers AS v WHERE v.person = a.person)
"""
_NUMBER = "INSERT INTO viewers (person) VALUES {rows} ON CONFLICT DO NOTHING"
_DAY = f"SELECT {COLUMNS} FROM audience_days WHERE day = ? AND source = ? AND step = ?"
_SAVE_DAY = f"""
INSERT INTO audience_days (day, source, step, events, anonymous, {COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    events = excluded.events, anonymous = excluded.anonymous, people = excluded.people,
    half_hours = excluded.half_hours, viewers = excluded.viewers, videos = excluded.videos
"""
_MISSING_WEEK = f"""
SELECT d.day - d.day % {WEEK_MS}, d.source, d.step FROM audience_days AS d
WHERE d.day < (SELECT max(day) - max(day) % {WEEK_MS} FROM audience_days) AND NOT EXISTS (
    SELECT 1 FROM audience_weeks AS w
    WHERE w.week = d.day - d.day % {WEEK_MS} AND w.source = d.source AND w.step = d.step
)
LIMIT 1
"""
_DAYS_OF_WEEK = f"""
SELECT {COLUMNS} FROM audience_days WHERE day >= ? AND day < ? AND source = ? AND step = ?
"""
_SAVE_WEEK = f"""
INSERT INTO audience_weeks (week, source, step, events, anonymous, {COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_DROP_WEEK = "DELETE FROM audience_weeks WHERE week = ? AND source = ? AND step = ?"
_ALL_SETS = f"""
SELECT 'on', day, source, {COLUMNS} FROM audience_days UNION ALL
SELECT 'in the week from', week, source, {COLUMNS} FROM audience_weeks
"""
_IS_ROLLED_UP = f"a.event <= {funnel_tables.ROLLED_TO}"
_AMONG = "IN (SELECT value FROM json_each(?))"
_OF_A_DAY = (
    "a.at >= ? AND a.at < ? AND a.source = ? AND a.step = ? "
    f"AND v.number {_AMONG} AND {_IS_ROLLED_UP}"
)


def last_event(db: sqlite3.Connection) -> int:
    """Return the number of the last event."""
    number: int = db.execute(_LAST_EVENT).fetchone()[0]
    return number


def uncounted(db: sqlite3.Connection, upto: int) -> list[Uncounted]:
    """Return the next events to count, as many as one transaction takes."""
    found = db.execute(_UNCOUNTED, (upto,))
    rows = within_bytes(found, counting.STEP_BYTES, lambda row: len(row[4] or b""))
    return [Uncounted(*row) for row in rows]


def superseded(db: sqlite3.Connection) -> list[int]:
    """Return the next counted events that their originals have superseded."""
    events: list[int] = orjson.loads(db.execute(_SUPERSEDED).fetchone()[0])
    return events


def all_sets(db: sqlite3.Connection) -> Iterable[Row]:
    """Return the rows of `relay.store.audience.days.damaged`."""
    return db.execute(_ALL_SETS)


class SqliteAudienceTables:
    """Fulfils `CountingTables` and `RollupTables` of `relay.store.audience.tables`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def name_videos(self, titles: Mapping[str, str | None]) -> Mapping[str, int]:
        bulk.write(self._db, _NAME, list(titles.items()))
        ids = orjson.dumps(list(titles)).decode()
        return dict(self._db.execute(_NUMBERS, (ids,)).fetchall())

    def add_views(self, views: Sequence[CountedView]) -> None:
        bulk.write(self._db, _ADD, views)

    def add_changes(self, changes: Sequence[Changed]) -> None:
        bulk.write(self._db, _CHANGED, changes)

    def set_counted_to(self, event: int) -> None:
        queries.remember(self._db, "audience", event)

    def rolled_to(self) -> int:
        return queries.recall(self._db, ROLLED_TO) or 0

    def set_rolled_to(self, event: int) -> None:
        queries.remember(self._db, ROLLED_TO, event)

    def newest_day_events(self) -> int:
        return int(self._db.execute(_DAY_EVENTS).fetchone()[0])

    def next_rows(self, after: int, limit: int) -> tuple[int, int | None]:
        count, upto = self._db.execute(_NEXT, (after, limit)).fetchone()
        return count, upto

    def new_people(self, after: int, upto: int) -> Sequence[int]:
        (people,) = self._db.execute(_NEW_PEOPLE, (after, upto)).fetchone()
        numbers: list[int] = orjson.loads(people)
        return numbers

    def number(self, people: Sequence[int]) -> None:
        bulk.write(self._db, _NUMBER, [(person,) for person in people])

    def views(self, after: int, upto: int) -> Iterator[View]:
        return self._views("a.event > ? AND a.event <= ?", after, upto)

    def rolled_up(self, events: Sequence[int]) -> Iterator[View]:
        return self._views(f"a.event {_AMONG} AND {_IS_ROLLED_UP}", _json(events))

    def views_of(self, person: int) -> Iterable[View]:  # noqa: ARG002
        # No row is added to a day during an erasure, and a search of all rows holds others up.
        return ()

    def views_on(self, key: Key, people: Sequence[int]) -> Iterator[View]:
        end_ms = key.day_ms + DAY_MS
        return self._views(_OF_A_DAY, key.day_ms, end_ms, key.source, key.step, _json(people))

    def _views(self, where: str, *values: object) -> Iterator[View]:
        return (view for view, _ in funnel_tables.views(self._db, where, values))

    def days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        rows = ((key, self._db.execute(_DAY, key).fetchone()) for key in keys)
        return {key: row for key, row in rows if row is not None}

    def save_days(self, days: Mapping[Key, Row]) -> None:
        self._db.executemany(_SAVE_DAY, [(*key, *columns) for key, columns in days.items()])

    def clear_days(self) -> None:
        self._db.execute("DELETE FROM audience_days")
        self._db.execute("DELETE FROM audience_weeks")

    def missing_week(self) -> Key | None:
        row = self._db.execute(_MISSING_WEEK).fetchone()
        return None if row is None else Key(*row)

    def days_of_week(self, week: Key) -> Iterable[Row]:
        start_ms, source, step = week
        values = (start_ms, start_ms + WEEK_MS, source, step)
        return self._db.execute(_DAYS_OF_WEEK, values).fetchall()

    def save_week(self, week: Key, columns: Row) -> None:
        self._db.execute(_SAVE_WEEK, (*week, *columns))

    def drop_weeks(self, weeks: Collection[Key]) -> None:
        self._db.executemany(_DROP_WEEK, weeks)

    def delete_views(self, events: Sequence[int]) -> None:
        self._db.execute(f"DELETE FROM audience WHERE event {_AMONG}", (_json(events),))

    def delete_viewer(self, person: int) -> None:
        self._db.execute("DELETE FROM viewers WHERE person = ?", (person,))


def _json(numbers: Sequence[int]) -> str:
    return orjson.dumps(numbers).decode()
