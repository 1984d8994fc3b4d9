"""Faults of the stored ids: the same one twice, in no index, or missing in a filter."""

import heapq
from collections.abc import Iterator
from itertools import islice

from relay.store.rows import ERASED
from relay.store.sqlite import id_filter, id_periods, known_ids
from relay.store.sqlite.driver import Row, snapshot, sqlite3
from relay.store.sqlite.known_ids import BlockFilters

FAULTS_MAX = 100

_INDEX = "PRAGMA integrity_check(events)"
_IDS = "SELECT source, id, seq FROM ids WHERE period = ? ORDER BY source, id"
_OPEN = f"SELECT source, id, seq FROM events WHERE {id_periods.IS_OPEN} ORDER BY source, id"
_UNINDEXED = f"""
SELECT source, id, seq FROM events AS e WHERE NOT {id_periods.IS_OPEN} AND NOT EXISTS (
    SELECT 1 FROM ids AS i
    WHERE i.period = e.seq >> {id_periods.BITS} AND i.source = e.source AND i.id = e.id
        AND i.seq = e.seq
)
"""
_ASTRAY = """
SELECT source, id, seq FROM ids AS i WHERE NOT EXISTS (
    SELECT 1 FROM events AS e WHERE e.seq = i.seq AND e.source = i.source AND e.id = i.id
)
"""
_KEY = "SELECT value FROM keys WHERE name = ?"
_BLOCKS = "SELECT block FROM id_filters ORDER BY block"
_DAMAGED = "the filter of ids in block {block} is damaged; restart the relay to rebuild it"
_LACKING = (
    "the filter of ids in block {block} lacks some; stop the relay and let sqlite3 run "
    "`DELETE FROM id_filters WHERE block = {block}`, and the next start rebuilds it"
)
_HAS_PERIODS = "SELECT 1 FROM sqlite_schema WHERE name = 'id_filters'"


def faults(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the faults of a store, which the relay may be writing to."""
    for (text,) in db.execute(_INDEX):
        if text != "ok":
            yield text
    if db.execute(_HAS_PERIODS).fetchone() is None:
        return  # Of an older relay, with one index of all ids.
    with snapshot(db):
        yield from _of_filters(db)
        yield from islice(_of_table(db), FAULTS_MAX)
        yield from islice(_twice(db), FAULTS_MAX)


def _of_table(db: sqlite3.Connection) -> Iterator[str]:
    for source, event_id, seq in db.execute(_UNINDEXED):
        yield f"event {event_id} of source {source}, number {seq}, is missing in the table ids"
    for source, event_id, seq in db.execute(_ASTRAY):
        yield (
            f"the table ids has {event_id} of source {source} for event {seq}, "
            "which is absent or has another id"
        )


def _twice(db: sqlite3.Connection) -> Iterator[str]:
    last: Row = (None, None)
    indexed = [db.execute(_IDS, (period,)) for period in id_periods.indexed(db)]
    for source, event_id, seq in heapq.merge(*indexed, db.execute(_OPEN)):
        if (source, event_id) == last:
            yield f"event {event_id} of source {source} is stored twice, the second time as {seq}"
        last = (source, event_id)


def _of_filters(db: sqlite3.Connection) -> Iterator[str]:
    row = db.execute(_KEY, (known_ids.KEY,)).fetchone()
    if row is None:
        return
    (key,) = row
    for (block,) in db.execute(_BLOCKS).fetchall():
        stored = known_ids.stored(db, block)
        if stored is None or not stored.is_sound(key, block):
            yield _DAMAGED.format(block=block)
        elif any(_is_missing(db, key, stored, period) for period in id_periods.of_block(block)):
            yield _LACKING.format(block=block)


def _is_missing(db: sqlite3.Connection, key: bytes, stored: BlockFilters, period: int) -> bool:
    """Whether an id of a period is not in its filter."""
    if not stored.periods & id_filter.bit_of(period):
        return False
    return any(
        not id_filter.holds(stored.column, period, id_filter.places(key, source, event_id))
        for source, event_id, _ in db.execute(_IDS, (period,))
        if not event_id.startswith(ERASED)
    )
