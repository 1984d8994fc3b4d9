"""Periods of event numbers, within which an index finds the ids.

A new id is random, so that its place in an index of all ids is on a page of its own, which has to
be read and written twice. The index is therefore by period first: only the pages of the newest
period change. An id is unique within its period by the index, and in all of them by `known_ids`.
"""

from collections.abc import Sequence

from relay.store.sqlite import id_filter
from relay.store.sqlite.driver import sqlite3

BITS = 16
SIZE = 1 << BITS
"""Numbers in a period; the index in the schema has the same. The pages of a larger one would
change too far apart, and more of a smaller one would have to be looked up."""

BLOCK_BITS = BITS + id_filter.BLOCK_BITS

ERASED = "erased-"
"""Beginning of the ids that an erasure puts in the place of others, in any period."""

# From the index alone: a start reads no events, whose pages may be damaged.
_PERIOD = f"SELECT seq >> {BITS} FROM events {{after}} ORDER BY seq >> {BITS} LIMIT 1"
NUMBERS = f"""
WITH RECURSIVE periods(period) AS (
    SELECT ({_PERIOD.format(after="")})
    UNION ALL
    SELECT ({_PERIOD.format(after=f"WHERE seq >> {BITS} > period")}) FROM periods
    WHERE period IS NOT NULL
)
SELECT period FROM periods WHERE period IS NOT NULL
"""
"""The periods that have events."""

_SOURCE_AFTER = f"""
SELECT source FROM events WHERE seq >> {BITS} = {{period}} {{after}} ORDER BY source LIMIT 1
"""
# Seeks from one source to the next in the index.
SOURCES = f"""
WITH RECURSIVE sources(period, source) AS (
    SELECT period, ({_SOURCE_AFTER.format(period="period", after="")}) FROM ({NUMBERS})
    UNION ALL
    SELECT period, ({_SOURCE_AFTER.format(period="s.period", after="AND source > s.source")})
    FROM sources AS s WHERE s.source IS NOT NULL
)
SELECT period, source FROM sources WHERE source IS NOT NULL
"""
"""The sources of the events in each period."""

INDEXED = f"({SOURCES}) AS k CROSS JOIN events AS i"
"""A table of all events to be found by id or its beginning, with this condition: """
IN_INDEX = f"i.seq >> {BITS} = k.period AND i.source = k.source"

WITH_ID = f"SELECT i.seq FROM {INDEXED} WHERE {IN_INDEX} AND i.id = ?"
"""The events with an id."""

IN_PERIODS = f"""
FROM json_each({{periods}}) AS p CROSS JOIN main.events AS i
WHERE i.seq >> {BITS} = p.value AND i.source = {{source}} AND i.id = {{id}}
"""
"""The event with a source and an id in one of some periods."""


def of(seq: int) -> int:
    """Return the period of a number."""
    return seq >> BITS


def first(period: int) -> int:
    """Return the first number of a period."""
    return period << BITS


def of_block(block: int) -> range:
    """Return the periods of a block."""
    return range(block << id_filter.BLOCK_BITS, block + 1 << id_filter.BLOCK_BITS)


def numbers(db: sqlite3.Connection) -> list[int]:
    """Return the periods that have events, oldest first."""
    return [period for (period,) in db.execute(NUMBERS)]


def sources(db: sqlite3.Connection) -> Sequence[tuple[int, str]]:
    """Return the sources of the events in each period."""
    return db.execute(SOURCES).fetchall()
