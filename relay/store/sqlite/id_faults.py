"""Faults of the stored ids: the same one twice, in no index, or missing in a filter."""

import heapq
from collections.abc import Iterator

from relay.store.sqlite import id_filter, id_periods, known_ids
from relay.store.sqlite.driver import Row, snapshot, sqlite3
from relay.store.sqlite.known_ids import Stored

FAULTS_MAX = 100

_INDEX = "PRAGMA integrity_check(events)"
_IDS = f"SELECT source, id, seq FROM events WHERE seq >> {id_periods.BITS} = ? ORDER BY source, id"
_KEY = "SELECT value FROM keys WHERE name = ?"
_BLOCKS = "SELECT block FROM id_filters ORDER BY block"
_DAMAGED = (
    "the filter of ids in block {block} is damaged; start the relay again, which makes it anew"
)
_LACKING = (
    "the filter of ids in block {block} lacks some; stop the relay and let sqlite3 run "
    "`DELETE FROM id_filters WHERE block = {block}`, and the next start makes it anew"
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
        yield from _twice(db)


def _twice(db: sqlite3.Connection) -> Iterator[str]:
    last: Row = (None, None)
    count = 0
    periods = [db.execute(_IDS, (period,)) for period in id_periods.numbers(db)]
    for source, event_id, seq in heapq.merge(*periods):
        if (source, event_id) == last:
            yield f"event {event_id} of source {source} is stored twice, the second time as {seq}"
            count += 1
        if count == FAULTS_MAX:
            return
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


def _is_missing(db: sqlite3.Connection, key: bytes, stored: Stored, period: int) -> bool:
    """Whether an id of a period is not in its filter."""
    if not stored.periods & id_filter.bit_of(period):
        return False
    return any(
        not id_filter.holds(stored.column, period, id_filter.places(key, source, event_id))
        for source, event_id, _ in db.execute(_IDS, (period,))
        if not event_id.startswith(id_periods.ERASED)
    )
