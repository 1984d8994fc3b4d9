"""Reads and writes of many rows of the audience, each in one statement.

Members take turns: each transaction locks the state that says how far the last one came.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from relay.store.audience import counting
from relay.store.audience.counting import Uncounted
from relay.store.audience.days import COLUMNS, Key, View
from relay.store.audience.reads import LAST_ROLLED_UP, Pairs, RawView, RowRange, of_range
from relay.store.audience.sets import VIDEO_BITS
from relay.store.audience.writes import AudienceWrites, Changed, CountedView
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.rows import SUPERSEDED, Row, within_bytes
from relay.store.sql import Sql, Values

_BEGIN = "INSERT INTO relay.state (name, value) VALUES (%s, 0) ON CONFLICT (name) DO NOTHING"
_AWAIT = "SELECT value FROM relay.state WHERE name = %s FOR UPDATE"
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
_VIEWS = """
SELECT a.at, a.source, a.step, coalesce(a.video, 0), v.number, a.person
FROM main.audience AS a LEFT JOIN main.viewers AS v ON v.person = a.person WHERE {where}
"""
_RAW_VIEWS = of_range(_VIEWS)
_PAIRS = of_range(f"""
SELECT a.source, a.step,
    array_agg(coalesce(a.video, 0) << {VIDEO_BITS} | v.number) FILTER (WHERE v.number IS NOT NULL),
    array_agg(coalesce(a.video, 0)) FILTER (WHERE v.number IS NULL)
FROM main.audience AS a LEFT JOIN main.viewers AS v ON v.person = a.person
WHERE {{where}} GROUP BY a.source, a.step
""")
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
_DROP_WEEKS = f"""
DELETE FROM relay.audience_weeks WHERE (week, source, step) IN (SELECT * FROM {_KEYS})
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


def state_of_rows(db: Database, after: int, upto: int) -> Row | None:
    """Return what differs if a row, or a person's number, has gone; None if one is missing."""
    state = db.execute(_STATE_OF_ROWS, (after, upto)).fetchall()[0]
    _, people, numbers, _ = state
    return state if people == numbers else None


class PostgresAudienceTables(AudienceWrites):
    """The tables in a transaction that has called `claim` or `wait_for`, or in one snapshot."""

    _db: Database

    def raw_views(self, rows: RowRange) -> Iterator[RawView]:
        return self._raw_views(rows.select(_RAW_VIEWS), rows.values)

    def _raw_views(self, sql: Sql, values: Values) -> Iterator[RawView]:
        return (RawView(View(*row), person) for *row, person in self._db.execute(sql, values))

    def pairs(self, rows: RowRange) -> Iterator[Pairs]:
        found = self._db.execute(rows.select(_PAIRS), rows.values)
        return (
            Pairs(source, step, pairs or (), anonymous or ())
            for source, step, pairs, anonymous in found
        )

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

    def new_people(self, after: int, upto: int) -> Sequence[int]:
        return [person for (person,) in self._db.execute(_NEW_PEOPLE, (after, upto))]

    def views_of(self, person: int) -> Iterator[View]:
        where = f"a.person = :person AND a.event <= {LAST_ROLLED_UP}"
        return self._views(where, {"person": person})

    def _views(self, where: str, values: Values) -> Iterator[View]:
        return (view for view, _ in self._raw_views(Sql(_VIEWS.format(where=where)), values))

    def stored_days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        rows = self._db.execute(_STORED_DAYS, _columns(keys)) if keys else ()
        return {Key(*row[:3]): row[3:] for row in rows}

    def save_days(self, days: Mapping[Key, Row]) -> None:
        if days:
            self._db.execute(_SAVE_DAYS, _columns([(*key, *days[key]) for key in days]))

    def drop_weeks(self, weeks: Collection[Key]) -> None:
        if weeks:
            self._db.execute(_DROP_WEEKS, _columns(weeks))


def _columns(rows: Iterable[Row]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
