"""Where a search in SQLite looks: which indexes list the events that may match."""

from relay.store.dead_letters import sinks_by_state
from relay.store.search import Candidates, Indexes, Listed, of_deliveries
from relay.store.selection import Selection
from relay.store.sql import Condition
from relay.store.sqlite.conditions import UNCOUNTED, WITH_PREFIX
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import COUNT_ALL as _ALL
from relay.store.sqlite.id_periods import COUNT_OF_SOURCE as _OF_SOURCE
from relay.store.sqlite.id_periods import IDS, IN_INDEX, IS_OPEN, WITH_ID

REPLAYED_MAX = 10_000
"""Deliveries of replays above which pending ones are not taken from their index, which is by time
and has to be sorted."""
PREFIXED_MAX = 1000
"""Events with a prefix above which they are not taken from the index of ids, which has to be
sorted."""

_REPLAYED = f"""
SELECT count(*) > {REPLAYED_MAX} FROM (
    SELECT 1 FROM deliveries WHERE status = 'pending' AND replay IS NOT NULL
    LIMIT {REPLAYED_MAX + 1}
)
"""
_PENDING = sinks_by_state(
    "status = 'pending' AND replay IS NULL", "status = 'pending' AND replay IS NOT NULL"
)


def _candidates(db: sqlite3.Connection, selection: Selection) -> Candidates:
    if (event_id := selection.id) is not None:
        named = Condition(f"seq IN ({WITH_ID})", {"id": event_id})
        return Candidates([Listed("events", "seq", named)])
    if (prefix := selection.id_prefix) is not None:
        values = {"id_prefix": prefix}
        candidates = Candidates(
            [
                Listed(IDS, "i.seq", Condition(f"{IN_INDEX} AND i.{WITH_PREFIX}", values)),
                Listed("events", "seq", Condition(f"{IS_OPEN} AND {WITH_PREFIX}", values)),
            ]
        )
        if candidates.are_few(db, PREFIXED_MAX):
            return candidates
    if (person := selection.person_number) is not None:
        # An index of people would cost a page per event when the audience is counted, and
        # these rows are so small that a search gets through them quickly.
        of = {"person": person}
        counted = Listed("audience", "event", Condition("person = :person", of))
        uncounted = Listed("events", "seq", Condition(UNCOUNTED, of))
        return Candidates([counted, uncounted], is_counted=False)
    if selection.status == "dead":
        return of_deliveries(db, selection.sink)
    if selection.status == "pending" and not db.execute(_REPLAYED).fetchone()[0]:
        return of_deliveries(db, selection.sink, _PENDING)
    return Candidates()


def _count_all(db: sqlite3.Connection, source: str | None) -> int:
    row = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, {"source": source})
    return int(row.fetchone()[0])


INDEXES = Indexes(_candidates, _count_all)
