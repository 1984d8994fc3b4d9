"""Queries of searches in SQLite."""

from functools import partial

from msgspec.structs import replace

from relay.core.event import KINDS
from relay.store.search import Plan, SearchQueries, seq_range
from relay.store.selection import Selection
from relay.store.sqlite import operator_queries
from relay.store.sqlite.candidates import Candidates
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import COUNT_ALL as _ALL
from relay.store.sqlite.id_periods import COUNT_OF_SOURCE as _OF_SOURCE

_LAST = """
SELECT max(last_at) FROM totals
WHERE (kind GLOB ?1 OR kind = 'other' AND ?2) AND (?3 IS NULL OR source = ?3)
"""


def _plan(db: sqlite3.Connection, selection: Selection) -> Plan[sqlite3.Connection]:
    return Plan(
        # The candidates take the place of the list of all of a person's events.
        replace(selection, person=None) if selection.id is None else selection,
        Candidates.of(db, selection),
        seq_range(db, selection, partial(_newest_ms, db)),
    )


def _count_all(db: sqlite3.Connection, source: str | None) -> int:
    row = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, (source,))
    return int(row.fetchone()[0])


def _newest_ms(db: sqlite3.Connection, kind: str, source: str | None) -> int | None:
    newest: int | None = db.execute(_LAST, (kind, kind not in KINDS, source)).fetchone()[0]
    return newest


QUERIES = SearchQueries(
    plan=_plan,
    events=operator_queries.events,
    count=operator_queries.count,
    count_all=_count_all,
)
