"""The audience of seven days that are over, joined beforehand."""

from relay.core.minutes import DAY_MS
from relay.store.sqlite.audience_days import COLUMNS, Day, Key
from relay.store.sqlite.driver import sqlite3

WEEK_MS = 7 * DAY_MS

_WEEK = f"d.day - d.day % {WEEK_MS}"
_MISSING = f"""
SELECT {_WEEK}, d.source, d.step FROM audience_days AS d
WHERE d.day < (SELECT max(day) - max(day) % {WEEK_MS} FROM audience_days) AND NOT EXISTS (
    SELECT 1 FROM audience_weeks AS w
    WHERE w.week = {_WEEK} AND w.source = d.source AND w.step = d.step
)
LIMIT 1
"""
_DAYS = f"""
SELECT {COLUMNS} FROM audience_days WHERE day >= ? AND day < ? AND source = ? AND step = ?
"""
_SAVE = f"""
INSERT INTO audience_weeks (week, source, step, events, anonymous, {COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_DROP = "DELETE FROM audience_weeks WHERE week = ? AND source = ? AND step = ?"
_WHOLE = f"week >= :since AND week <= :until - {WEEK_MS}"
WEEKS_AND_DAYS = f"""
SELECT week, source, step, {{columns}} FROM audience_weeks
WHERE {_WHOLE} AND (:source IS NULL OR source = :source)
UNION ALL
SELECT day, source, step, {{columns}} FROM audience_days AS d
WHERE day >= :since AND day < :until AND (:source IS NULL OR source = :source) AND NOT EXISTS (
    SELECT 1 FROM audience_weeks AS w
    WHERE w.week = {_WEEK} AND w.source = d.source AND w.step = d.step AND {_WHOLE}
)
"""
"""The whole weeks of a time, and the days of it that are in none of them."""


def missing(db: sqlite3.Connection) -> Key | None:
    """Return a week that is over and not stored, by its first day."""
    row = db.execute(_MISSING).fetchone()
    return None if row is None else Key(*row)


def store(db: sqlite3.Connection, week: Key) -> None:
    """Join the days of a week; raises Damaged."""
    joined = Day()
    start_ms, source, step = week
    for row in db.execute(_DAYS, (start_ms, start_ms + WEEK_MS, source, step)).fetchall():
        joined.merge(Day.parse(*row))
    db.execute(_SAVE, (*week, *joined.columns()))


def drop(db: sqlite3.Connection, day: Key) -> None:
    """Remove the week of a day that changes."""
    db.execute(_DROP, (day.day_ms - day.day_ms % WEEK_MS, day.source, day.step))
