"""Periods of event numbers, by which ids are found.

A new id is random, so that its place in an index of all ids is on a page of its own, which has to
be read and written twice: 5,700 of the 9,000 bytes that an event wrote, and with ten million ids
0.6 of the acknowledgements of an empty store. The ids of the newest periods are therefore in
memory, and those of a full one are written to the table `ids` at once and in their order
(`id_indexing`); triggers remove those of events that are removed or erased.
"""

from relay.store.sqlite import id_filter
from relay.store.sqlite.driver import sqlite3

BITS = 15
SIZE = 1 << BITS
"""Numbers in a period; the schema has the same. A start reads the events of the newest ones, and
more of a smaller one would have to be looked up."""

BLOCK_BITS = BITS + id_filter.BLOCK_BITS

INDEXED = "indexed"
"""Name of the first event that may be missing in `ids`, among the store's own values."""

_FRONTIER = f"coalesce((SELECT value FROM state WHERE name = '{INDEXED}'), 0)"
IS_OPEN = f"seq >= {_FRONTIER}"
"""Whether one of `events` is in a period that is not indexed; `ids` may have it all the same."""

# Of `ids` alone: a start reads no older events, whose pages may be damaged.
_PERIOD = f"""
SELECT period FROM ids WHERE period > {{after}} AND period < {_FRONTIER} >> {BITS}
ORDER BY period LIMIT 1
"""
_NUMBERS = f"""
WITH RECURSIVE periods(period) AS (
    SELECT ({_PERIOD.format(after="-1")})
    UNION ALL
    SELECT ({_PERIOD.format(after="p.period")}) FROM periods AS p WHERE p.period IS NOT NULL
)
SELECT period FROM periods WHERE period IS NOT NULL
"""
_OPEN_PERIOD = f"SELECT seq >> {BITS} FROM events WHERE seq >= {{first}} ORDER BY seq LIMIT 1"
_OPEN_NUMBERS = f"""
WITH RECURSIVE periods(period) AS (
    SELECT ({_OPEN_PERIOD.format(first=_FRONTIER)})
    UNION ALL
    SELECT ({_OPEN_PERIOD.format(first=f"p.period + 1 << {BITS}")}) FROM periods AS p
    WHERE p.period IS NOT NULL
)
SELECT period FROM periods WHERE period IS NOT NULL
"""

_SOURCE_AFTER = """
SELECT source FROM ids WHERE period = {period} {after} ORDER BY source LIMIT 1
"""
# Seeks from one source to the next.
SOURCES = f"""
WITH RECURSIVE sources(period, source) AS (
    SELECT period, ({_SOURCE_AFTER.format(period="n.period", after="")}) FROM ({_NUMBERS}) AS n
    UNION ALL
    SELECT period, ({_SOURCE_AFTER.format(period="s.period", after="AND source > s.source")})
    FROM sources AS s WHERE s.source IS NOT NULL
)
SELECT period, source FROM sources WHERE source IS NOT NULL
"""
"""The sources of the events in each indexed period."""

IDS = f"({SOURCES}) AS k CROSS JOIN ids AS i"
"""A table of all indexed ids, to be found by the beginning with this condition: """
IN_INDEX = "i.period = k.period AND i.source = k.source"

WITH_ID = f"""
SELECT i.seq FROM {IDS} WHERE {IN_INDEX} AND i.id = :id
UNION ALL SELECT seq FROM events WHERE {IS_OPEN} AND id = :id
"""
"""The events with an id."""

_COUNT = f"""
SELECT (SELECT count(*) FROM ids WHERE period < {_FRONTIER} >> {BITS} {{fits}})
    + (SELECT count(*) FROM events WHERE {IS_OPEN} {{fits}})
"""
COUNT_ALL = _COUNT.format(fits="")
"""Number of all events; 10 to 50 ms for a million, because few of them are read."""
COUNT_OF_SOURCE = _COUNT.format(fits="AND source = :source")

IN_PERIODS = """
FROM json_each({periods}) AS p CROSS JOIN main.ids AS i
WHERE i.period = p.value AND i.source = {source} AND i.id = {id}
"""
"""The id of a source in one of some indexed periods."""


def of(seq: int) -> int:
    """Return the period of a number."""
    return seq >> BITS


def first(period: int) -> int:
    """Return the first number of a period."""
    return period << BITS


def of_block(block: int) -> range:
    """Return the periods of a block."""
    return range(block << id_filter.BLOCK_BITS, block + 1 << id_filter.BLOCK_BITS)


def first_unindexed(db: sqlite3.Connection) -> int:
    """Return the first number of the first period that is not indexed."""
    number: int = db.execute(f"SELECT {_FRONTIER}").fetchone()[0]
    return number


def indexed(db: sqlite3.Connection) -> list[int]:
    """Return the indexed periods that have events, oldest first."""
    return [period for (period,) in db.execute(_NUMBERS)]


def numbers(db: sqlite3.Connection) -> list[int]:
    """Return all periods that have events, oldest first."""
    return indexed(db) + [period for (period,) in db.execute(_OPEN_NUMBERS)]


def sources(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Return the sources of the events in each indexed period."""
    return db.execute(SOURCES).fetchall()
