"""Writes of the audience: its rows, made of events, and its days and weeks, made of the rows.

Members take turns: each transaction locks the state that says how far the last one came.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from relay.core.minutes import DAY_MS
from relay.store.audience import counting
from relay.store.audience.days import COLUMNS, WEEK_MS, Key, View
from relay.store.audience.tables import ROLLED_TO, Changed, CountedView, Row, Uncounted
from relay.store.postgres import funnel_tables
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.rows import SUPERSEDED, within_bytes

COUNTED_TO = "audience"
"""Name of the state that holds the last event that was counted."""

_BEGIN = "INSERT INTO relay.state (name, value) VALUES (%s, 0) ON CONFLICT (name) DO NOTHING"
_AWAIT = "SELECT value FROM relay.state WHERE name = %s FOR UPDATE"
_SET = "UPDATE relay.state SET value = %s WHERE name = %s"
_RECALL = "SELECT value FROM relay.state WHERE name = %s"
_UNCOUNTED = f"""
SELECT seq, octet_length(body) FROM relay.events
WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT {counting.STEP_ROWS}
"""
# A superseded reconstruction is counted by its original alone.
_BODIES = f"""
SELECT seq, source, kind, received_at,
    CASE WHEN (kind = 'lead.captured' OR starts_with(kind, 'video.'))
        AND reconstructed < {SUPERSEDED} THEN body END,
    reconstructed > 0
FROM relay.events WHERE seq > %s AND seq <= %s ORDER BY seq
"""
_SUPERSEDED = f"""
SELECT a.event FROM relay.events e JOIN relay.audience a ON a.event = e.seq
WHERE e.reconstructed = {SUPERSEDED} LIMIT {counting.UNCOUNTED_ROWS}
"""
_NUMBERS = "SELECT id, number FROM relay.videos WHERE id = ANY(%b::text[])"
# Only new ones, because a conflict would use up a number.
_ADD_VIDEOS = """
INSERT INTO relay.videos (id)
SELECT id FROM unnest(%b::text[]) AS named (id)
WHERE NOT EXISTS (SELECT 1 FROM relay.videos AS v WHERE v.id = named.id)
ON CONFLICT (id) DO NOTHING
"""
_TITLE = """
UPDATE relay.videos AS v SET title = t.title FROM unnest(%b::text[], %b::text[]) AS t (id, title)
WHERE v.id = t.id AND v.title IS DISTINCT FROM t.title
"""
_ADD_VIEWS = """
INSERT INTO relay.audience (event, source, video, step, person, at)
SELECT * FROM unnest(
    %b::bigint[], %b::text[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[]
) ON CONFLICT DO NOTHING
"""
_ADD_CHANGES = """
INSERT INTO relay.library AS l (source, video, change, event, at)
SELECT source, video, change, max(event), max(at)
FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[])
    AS c (source, video, change, event, at)
GROUP BY 1, 2, 3
ON CONFLICT (source, video, change) DO UPDATE
SET event = excluded.event, at = greatest(l.at, excluded.at)
"""
_DAY_EVENTS = """
SELECT coalesce(sum(events), 0)::bigint FROM relay.audience_days
WHERE day = (SELECT max(day) FROM relay.audience_days)
"""
_NEXT = """
SELECT count(*), max(event)
FROM (SELECT event FROM relay.audience WHERE event > %s ORDER BY event LIMIT %s) AS following
"""
_NEW_PEOPLE = """
SELECT DISTINCT a.person FROM relay.audience AS a
WHERE a.event > %s AND a.event <= %s AND a.person IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM relay.viewers AS v WHERE v.person = a.person)
"""
# Rows only go, and a new number is larger than an old one: equal sums mean the same rows.
_STATE_OF_ROWS = """
SELECT count(*), count(a.person), count(v.number), coalesce(sum(v.number), 0)
FROM relay.audience AS a LEFT JOIN relay.viewers AS v ON v.person = a.person
WHERE a.event > %s AND a.event <= %s
"""
_NUMBER = """
INSERT INTO relay.viewers (person) SELECT unnest(%b::bigint[]) ON CONFLICT (person) DO NOTHING
"""
_KEYS = "unnest(%b::bigint[], %b::text[], %b::text[])"
_STORED_DAYS = f"""
SELECT day, source, step, {COLUMNS} FROM relay.audience_days
WHERE (day, source, step) IN (SELECT * FROM {_KEYS})
"""
_SAVE_DAYS = f"""
INSERT INTO relay.audience_days (day, source, step, events, anonymous, {COLUMNS})
SELECT * FROM unnest(
    %b::bigint[], %b::text[], %b::text[], %b::bigint[], %b::bigint[],
    %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[]
) ON CONFLICT (day, source, step) DO UPDATE SET
    events = excluded.events, anonymous = excluded.anonymous, people = excluded.people,
    half_hours = excluded.half_hours, viewers = excluded.viewers, videos = excluded.videos
"""
_MISSING_WEEK = f"""
SELECT d.day - d.day % {WEEK_MS}, d.source, d.step FROM relay.audience_days AS d
WHERE d.day < (SELECT max(day) - max(day) % {WEEK_MS} FROM relay.audience_days) AND NOT EXISTS (
    SELECT 1 FROM relay.audience_weeks AS w
    WHERE w.week = d.day - d.day % {WEEK_MS} AND w.source = d.source AND w.step = d.step
)
LIMIT 1
"""
_DAYS_OF_WEEK = f"""
SELECT {COLUMNS} FROM relay.audience_days
WHERE day >= %s AND day < %s AND source = %s AND step = %s
"""
_SAVE_WEEK = f"""
INSERT INTO relay.audience_weeks (week, source, step, events, anonymous, {COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_DROP_WEEKS = f"""
DELETE FROM relay.audience_weeks WHERE (week, source, step) IN (SELECT * FROM {_KEYS})
"""
_ALL_SETS = f"""
SELECT 'on', day, source, {COLUMNS} FROM relay.audience_days UNION ALL
SELECT 'in the week from', week, source, {COLUMNS} FROM relay.audience_weeks
"""


def claim(db: Database, state: str) -> int | None:
    """Lock a state of the audience for this transaction; None if another member has."""
    db.execute(_BEGIN, (state,))
    row = db.execute(f"{_AWAIT} SKIP LOCKED", (state,)).fetchone()
    return None if row is None else int(row[0])


def wait_for(db: Database, state: str) -> int:
    """Lock a state of the audience for this transaction, after the other members' ones."""
    db.execute(_BEGIN, (state,))
    ((value,),) = db.execute(_AWAIT, (state,)).fetchall()
    return int(value)


def uncounted(db: Database, after: int, upto: int) -> list[Uncounted]:
    """Return the next events to count, as many as one transaction takes.

    Their sizes are read first, because a result arrives as a whole.
    """
    sizes = db.execute(_UNCOUNTED, (after, upto)).fetchall()
    chosen = list(within_bytes(sizes, counting.STEP_BYTES, lambda row: row[1] or 0))
    if not chosen:
        return []
    return [Uncounted(*row) for row in db.execute(_BODIES, (after, chosen[-1][0]))]


def superseded(db: Database) -> list[int]:
    """Return the next counted events that their originals have superseded."""
    return [event for (event,) in db.execute(_SUPERSEDED)]


def all_sets(db: Database) -> Iterable[Row]:
    """Return the rows of `relay.store.audience.days.damaged`."""
    return db.execute(_ALL_SETS)


class PostgresAudienceTables:
    """Fulfils `CountingTables` and `RollupTables` of `relay.store.audience.tables`.

    In a transaction that has locked what it changes, by `claim` or `wait_for`.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def name_videos(self, titles: Mapping[str, str | None]) -> Mapping[str, int]:
        if not titles:
            return {}
        stored = {id_: storable(id_) for id_ in titles}
        ids = list(dict.fromkeys(stored.values()))
        named = {stored[id_]: storable(title) for id_, title in titles.items() if title is not None}
        self._db.execute(_ADD_VIDEOS, (ids,))
        if named:
            self._db.execute(_TITLE, (list(named), list(named.values())))
        numbers = {id_: int(number) for id_, number in self._db.execute(_NUMBERS, (ids,))}
        return {id_: numbers[text] for id_, text in stored.items()}

    def add_views(self, views: Sequence[CountedView]) -> None:
        if views:
            self._db.execute(_ADD_VIEWS, _columns(views))

    def add_changes(self, changes: Sequence[Changed]) -> None:
        if changes:
            self._db.execute(_ADD_CHANGES, _columns(changes))

    def set_counted_to(self, event: int) -> None:
        self._db.execute(_SET, (event, COUNTED_TO))

    def rolled_to(self) -> int:
        row = self._db.execute(_RECALL, (ROLLED_TO,)).fetchone()
        return 0 if row is None else int(row[0])

    def set_rolled_to(self, event: int) -> None:
        self._db.execute(_SET, (event, ROLLED_TO))

    def newest_day_events(self) -> int:
        ((events,),) = self._db.execute(_DAY_EVENTS).fetchall()
        return int(events)

    def next_rows(self, after: int, limit: int) -> tuple[int, int | None]:
        ((count, upto),) = self._db.execute(_NEXT, (after, limit)).fetchall()
        return count, upto

    def new_people(self, after: int, upto: int) -> Sequence[int]:
        return [person for (person,) in self._db.execute(_NEW_PEOPLE, (after, upto))]

    def number(self, people: Sequence[int]) -> None:
        self._db.execute(_NUMBER, (list(people),))

    def state_of_rows(self, after: int, upto: int) -> Row | None:
        """Return what differs if a row, or a person's number, has gone; None if one is missing."""
        state = self._db.execute(_STATE_OF_ROWS, (after, upto)).fetchall()[0]
        _, people, numbers, _ = state
        return state if people == numbers else None

    def views(self, after: int, upto: int) -> Iterator[View]:
        return self._views("a.event > %s AND a.event <= %s", after, upto)

    def rolled_up(self, events: Sequence[int]) -> Iterator[View]:
        return self._views(f"a.event = ANY(%b::bigint[]) AND {_IS_ROLLED_UP}", list(events))

    def views_of(self, person: int) -> Iterator[View]:
        return self._views(f"a.person = %s AND {_IS_ROLLED_UP}", person)

    def views_on(self, key: Key, people: Sequence[int]) -> Iterator[View]:
        end_ms = key.day_ms + DAY_MS
        return self._views(_OF_A_DAY, key.day_ms, end_ms, key.source, key.step, list(people))

    def _views(self, where: str, *values: object) -> Iterator[View]:
        return (view for view, _ in funnel_tables.views(self._db, where, values))

    def days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        rows = self._db.execute(_STORED_DAYS, _columns(keys)) if keys else ()
        return {Key(*key): columns for *key, columns in ((*row[:3], row[3:]) for row in rows)}

    def save_days(self, days: Mapping[Key, Row]) -> None:
        if days:
            self._db.execute(_SAVE_DAYS, _columns([(*key, *days[key]) for key in days]))

    def clear_days(self) -> None:
        self._db.execute("DELETE FROM relay.audience_days")
        self._db.execute("DELETE FROM relay.audience_weeks")

    def missing_week(self) -> Key | None:
        row = self._db.execute(_MISSING_WEEK).fetchone()
        return None if row is None else Key(*row)

    def days_of_week(self, week: Key) -> Iterable[Row]:
        start_ms, source, step = week
        return self._db.execute(_DAYS_OF_WEEK, (start_ms, start_ms + WEEK_MS, source, step))

    def save_week(self, week: Key, columns: Row) -> None:
        self._db.execute(_SAVE_WEEK, (*week, *columns))

    def drop_weeks(self, weeks: Collection[Key]) -> None:
        if weeks:
            self._db.execute(_DROP_WEEKS, _columns(weeks))

    def delete_views(self, events: Sequence[int]) -> None:
        sql = "DELETE FROM relay.audience WHERE event = ANY(%b::bigint[])"
        self._db.execute(sql, (list(events),))

    def delete_viewer(self, person: int) -> None:
        self._db.execute("DELETE FROM relay.viewers WHERE person = %s", (person,))


_IS_ROLLED_UP = f"a.event <= {funnel_tables.ROLLED_TO}"
_OF_A_DAY = (
    "a.at >= %s AND a.at < %s AND a.source = %s AND a.step = %s "
    f"AND v.number = ANY(%b::bigint[]) AND {_IS_ROLLED_UP}"
)


def _columns(rows: Iterable[Row]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
