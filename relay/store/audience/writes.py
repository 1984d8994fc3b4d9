"""Writes of the audience's tables: its rows, made of events, and its days, made of the rows.

Writes of many rows stay per engine: a statement with all as `VALUES` is SQLite's fastest, arrays
are PostgreSQL's.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from relay.core.minutes import DAY_MS
from relay.store.audience.days import COLUMNS, WEEK_MS, Key, View
from relay.store.audience.reads import (
    COUNTED_TO,
    LAST_ROLLED_UP,
    ROLLED_TO,
    AudienceReads,
    json_list,
)
from relay.store.rows import SUPERSEDED, Row
from relay.store.sql import Database, Sql, Values

UNCOUNTED_ROWS = 20
"""Rows that are taken out per transaction, because other writes wait for its end."""


class CountedView(NamedTuple):
    """A new row of the audience."""

    event: int
    source: str
    video: int | None
    """Its number."""
    step: str
    person: int | None
    """A keyed digest of the address."""
    at_ms: int


class Changed(NamedTuple):
    """What an event says of a video beside its views."""

    source: str
    video: int
    """Its number."""
    change: str
    event: int
    at_ms: int


_RECALL = Sql("SELECT value FROM main.state WHERE name = :name")
_REMEMBER = Sql("""
INSERT INTO main.state (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
""")
_SUPERSEDED = Sql(f"""
SELECT a.event FROM main.events AS e CROSS JOIN main.audience AS a
WHERE a.event = e.seq AND e.reconstructed = {SUPERSEDED} ORDER BY e.seq LIMIT {UNCOUNTED_ROWS}
""")
_DAY_EVENTS = Sql("""
SELECT CAST(coalesce(sum(events), 0) AS bigint) FROM main.audience_days
WHERE day = (SELECT max(day) FROM main.audience_days)
""")
_NEXT = Sql("""
SELECT count(*), max(event) FROM (
    SELECT event FROM main.audience WHERE event > :after ORDER BY event LIMIT :limit
) AS following
""")
_NUMBER = Sql("""
INSERT INTO main.viewers (person)
SELECT CAST(value AS bigint) FROM json_each(:people) AS x WHERE TRUE
ON CONFLICT (person) DO NOTHING
""")
_CLEAR_DAYS = Sql("DELETE FROM main.audience_days")
_CLEAR_WEEKS = Sql("DELETE FROM main.audience_weeks")
_MISSING_WEEK = Sql(f"""
SELECT d.day - d.day % {WEEK_MS}, d.source, d.step FROM main.audience_days AS d
WHERE d.day < (SELECT max(day) - max(day) % {WEEK_MS} FROM main.audience_days) AND NOT EXISTS (
    SELECT 1 FROM main.audience_weeks AS w
    WHERE w.week = d.day - d.day % {WEEK_MS} AND w.source = d.source AND w.step = d.step
)
ORDER BY d.day LIMIT 1
""")
_DAYS_OF_WEEK = Sql(f"""
SELECT {COLUMNS} FROM main.audience_days
WHERE day >= :since AND day < :until AND source = :source AND step = :step
""")
_SETS = ("events", "anonymous", *COLUMNS.split(", "))
_SAVE_WEEK = Sql(f"""
INSERT INTO main.audience_weeks (week, source, step, {", ".join(_SETS)})
VALUES (:week, :source, :step, {", ".join(f":{name}" for name in _SETS)}) ON CONFLICT DO NOTHING
""")
_DELETE_VIEW = Sql("DELETE FROM main.audience WHERE event = :event")
_DELETE_VIEWER = Sql("DELETE FROM main.viewers WHERE person = :person")
_ALL_SETS = Sql(f"""
SELECT 'on', day, source, {COLUMNS} FROM main.audience_days UNION ALL
SELECT 'in the week from', week, source, {COLUMNS} FROM main.audience_weeks
""")

_BETWEEN = "a.event > :after AND a.event <= :upto"
_IS_ROLLED_UP = f"a.event <= {LAST_ROLLED_UP}"
_AMONG = f"""
a.event IN (SELECT CAST(value AS bigint) FROM json_each(:events) AS x) AND {_IS_ROLLED_UP}
"""
_OF_A_DAY = f"""
a.at >= :since AND a.at < :until AND a.source = :source AND a.step = :step
AND v.number IN (SELECT CAST(value AS bigint) FROM json_each(:people) AS x) AND {_IS_ROLLED_UP}
"""


class AudienceWrites(AudienceReads):
    """Reads and writes of one transaction.

    On PostgreSQL it has locked the state of what it changes: `COUNTED_TO` or `ROLLED_TO`.
    """

    @abstractmethod
    def name_videos(self, titles: Mapping[str, str | None]) -> Mapping[str, int]:
        """Store the titles by id, where there are any, and return the videos' numbers."""

    @abstractmethod
    def add_views(self, views: Sequence[CountedView]) -> None: ...

    @abstractmethod
    def add_changes(self, changes: Sequence[Changed]) -> None: ...

    def set_counted_to(self, event: int) -> None:
        self._db.execute(_REMEMBER, {"name": COUNTED_TO, "value": event})

    def superseded(self) -> Sequence[int]:
        """Return the next counted events that their originals have superseded."""
        return [event for (event,) in self._db.execute(_SUPERSEDED).fetchall()]

    def rolled_to(self) -> int:
        """Return the last event in the audience by day."""
        row = self._db.execute(_RECALL, {"name": ROLLED_TO}).fetchone()
        return 0 if row is None else int(row[0])

    def set_rolled_to(self, event: int) -> None:
        self._db.execute(_REMEMBER, {"name": ROLLED_TO, "value": event})

    def newest_day_events(self) -> int:
        """Return the number of events of the newest day."""
        ((events,),) = self._db.execute(_DAY_EVENTS).fetchall()
        return int(events)

    def next_rows(self, after: int, limit: int) -> tuple[int, int | None]:
        """Return the number of the rows that follow, up to a limit, and the last one's event."""
        ((count, upto),) = self._db.execute(_NEXT, {"after": after, "limit": limit}).fetchall()
        return count, upto

    @abstractmethod
    def new_people(self, after: int, upto: int) -> Sequence[int]:
        """Return the people of the rows who have no number."""

    def number(self, people: Sequence[int]) -> None:
        """Give numbers to people; a number is never given twice."""
        self._db.execute(_NUMBER, {"people": json_list(people)})

    def views(self, after: int, upto: int) -> Iterable[View]:
        return self._views(_BETWEEN, {"after": after, "upto": upto})

    def rolled_up(self, events: Sequence[int]) -> Iterable[View]:
        """Return those of the rows that are in the audience by day."""
        return self._views(_AMONG, {"events": json_list(events)})

    def views_on(self, key: Key, people: Sequence[int]) -> Iterable[View]:
        """Return the rows of people, by number, that are in one of the days."""
        return self._views(
            _OF_A_DAY, {**_times(key, DAY_MS), "step": key.step, "people": json_list(people)}
        )

    @abstractmethod
    def views_of(self, person: int) -> Iterable[View]:
        """Return those of a person's rows that were added to days during an erasure."""

    @abstractmethod
    def _views(self, where: str, values: Values) -> Iterable[View]:
        """Return rows of `audience AS a`, with their people's numbers from `viewers AS v`."""

    @abstractmethod
    def stored_days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        """Return the four columns of sets of those days that are stored."""

    @abstractmethod
    def save_days(self, days: Mapping[Key, Row]) -> None: ...

    def clear_days(self) -> None:
        """Remove all days and weeks."""
        self._db.execute(_CLEAR_DAYS)
        self._db.execute(_CLEAR_WEEKS)

    def missing_week(self) -> Key | None:
        """Return a week that is over and not stored, by its first day."""
        row = self._db.execute(_MISSING_WEEK).fetchone()
        return None if row is None else Key(*row)

    def days_of_week(self, week: Key) -> Iterable[Row]:
        """Return the four columns of sets of each day."""
        values = {**_times(week, WEEK_MS), "step": week.step}
        return self._db.execute(_DAYS_OF_WEEK, values).fetchall()

    def save_week(self, week: Key, columns: Row) -> None:
        values = {"week": week.day_ms, "source": week.source, "step": week.step}
        self._db.execute(_SAVE_WEEK, {**values, **dict(zip(_SETS, columns, strict=True))})

    @abstractmethod
    def drop_weeks(self, weeks: Collection[Key]) -> None: ...

    def delete_views(self, events: Sequence[int]) -> None:
        """Remove a few rows."""
        for event in events:
            self._db.execute(_DELETE_VIEW, {"event": event})

    def delete_viewer(self, person: int) -> None:
        """Remove a person's number."""
        self._db.execute(_DELETE_VIEWER, {"person": person})


def all_sets(db: Database) -> Iterable[Row]:
    """Return the rows of `relay.store.audience.days.damaged`."""
    return db.execute(_ALL_SETS)


def _times(key: Key, length_ms: int) -> Values:
    return {"since": key.day_ms, "until": key.day_ms + length_ms, "source": key.source}
