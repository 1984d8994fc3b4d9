"""The audience by day: made of the rows of `audience`, many at once, and kept right by erasures.

The rows are read and counted by a reader; the writer only joins the result with what is stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from relay.store.sqlite import audience_weeks, bulk, queries
from relay.store.sqlite.audience_days import Day, Key, View, days_of
from relay.store.sqlite.audience_sets import Damaged
from relay.store.sqlite.driver import sqlite3

PROGRESS = "audience_days"
"""Name of the state that holds the last event in it."""

ROLLED_TO = f"coalesce((SELECT value FROM state WHERE name = '{PROGRESS}'), 0)"

BATCH_MIN, BATCH_MAX = 1000, 20_000
"""Rows per step. A step writes the whole day anew, however few rows it adds."""

DAY_SHARE = 32
"""Fraction of the newest day's events, 1 in this many, that a step waits for."""

NUMBERED = 500
"""New people per transaction."""

_DAY_EVENTS = """
SELECT coalesce(sum(events), 0) FROM audience_days
WHERE day = (SELECT max(day) FROM audience_days)
"""
_NEXT = f"""
SELECT count(*), max(event), {ROLLED_TO}
FROM (SELECT event FROM audience WHERE event > {ROLLED_TO} ORDER BY event LIMIT ?)
"""
# One row, because Python's lock changes hands at each row.
_NEW_PEOPLE = """
SELECT json_group_array(DISTINCT a.person) FROM audience AS a
WHERE a.event > ? AND a.event <= ? AND a.person IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM viewers AS v WHERE v.person = a.person)
"""
VIEWS = """
SELECT json_group_array(
    json_array(a.at, a.source, a.step, ifnull(a.video, 0), v.number, a.person)
)
FROM audience AS a LEFT JOIN viewers AS v ON v.person = a.person WHERE {fits}
"""
_VIEWS = VIEWS.format(fits="a.event > ? AND a.event <= ?")
_NUMBER = "INSERT INTO viewers (person) VALUES {rows} ON CONFLICT DO NOTHING"
_VIEW = f"""
SELECT a.at, a.source, a.step, ifnull(a.video, 0), v.number
FROM audience AS a LEFT JOIN viewers AS v ON v.person = a.person
WHERE a.event = ? AND a.event <= {ROLLED_TO}
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The next rows, `after` one event up to another."""

    after: int
    upto: int
    new_people: Sequence[int]

    def numberings(self) -> Iterator[Sequence[int]]:
        """Yield the new people, as many at a time as one transaction takes."""
        for start in range(0, len(self.new_people), NUMBERED):
            yield self.new_people[start : start + NUMBERED]

    def days(self, db: sqlite3.Connection) -> dict[Key, Day]:
        """Read them, once all people have numbers."""
        (rows,) = db.execute(_VIEWS, (self.after, self.upto)).fetchone()
        return days_of(View(*row) for *row, _ in orjson.loads(rows))


def next_batch(db: sqlite3.Connection) -> Batch | None:
    """Return the next rows to add; None while there are too few."""
    (newest,) = db.execute(_DAY_EVENTS).fetchone()
    count, upto, after = db.execute(_NEXT, (BATCH_MAX,)).fetchone()
    if count < min(max(BATCH_MIN, newest // DAY_SHARE), BATCH_MAX):
        return None
    (people,) = db.execute(_NEW_PEOPLE, (after, upto)).fetchone()
    return Batch(after, upto, orjson.loads(people))


def number(db: sqlite3.Connection, people: Sequence[int]) -> None:
    """Give numbers to people who have none."""
    bulk.write(db, _NUMBER, [(person,) for person in people])


def add(db: sqlite3.Connection, batch: Batch, days: dict[Key, Day]) -> None:
    """Add a batch to the stored days, unless they have been begun again since it was read."""
    if (queries.recall(db, PROGRESS) or 0) != batch.after:
        return
    try:
        for key, day in days.items():
            stored = Day.load(db, key)
            stored.merge(day)
            stored.save(db, key)
            audience_weeks.drop(db, key)
    except Damaged:
        reset(db)
        return
    queries.remember(db, PROGRESS, batch.upto)


def store_week(db: sqlite3.Connection, week: Key) -> None:
    """Join the days of a week."""
    try:
        audience_weeks.store(db, week)
    except Damaged:
        reset(db)


def forget_view(db: sqlite3.Connection, event: int) -> None:
    """Remove a view from its day, before its row goes with all others of the same person."""
    row = db.execute(_VIEW, (event,)).fetchone()
    if row is None:
        return
    view = View(*row)
    try:
        day = Day.load(db, view.key)
        day.remove(view)
    except Damaged:
        reset(db)
        return
    day.save(db, view.key)
    audience_weeks.drop(db, view.key)


def forget_person(db: sqlite3.Connection, person: int) -> None:
    """Remove the person's number; no day may contain it."""
    db.execute("DELETE FROM viewers WHERE person = ?", (person,))


def reset(db: sqlite3.Connection) -> None:
    """Begin again, because a stored day is damaged."""
    db.execute("DELETE FROM audience_days")
    db.execute("DELETE FROM audience_weeks")
    queries.remember(db, PROGRESS, 0)
