"""Queries of searches in SQLite."""

from msgspec.structs import replace

from relay.store.selection import Selection
from relay.store.sqlite import operator_queries, seq_range
from relay.store.sqlite.candidates import Candidates
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import COUNT_ALL as _ALL
from relay.store.sqlite.id_periods import COUNT_OF_SOURCE as _OF_SOURCE
from relay.store.stepwise_search import Plan, SearchQueries


def _plan(db: sqlite3.Connection, selection: Selection) -> Plan[sqlite3.Connection]:
    return Plan(
        # The candidates take the place of the list of all of a person's events.
        replace(selection, person=None) if selection.id is None else selection,
        Candidates.of(db, selection),
        seq_range.seq_range(db, selection),
    )


def _count_all(db: sqlite3.Connection, source: str | None) -> int:
    row = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, (source,))
    return int(row.fetchone()[0])


QUERIES = SearchQueries(
    plan=_plan,
    events=operator_queries.events,
    count=operator_queries.count,
    count_all=_count_all,
    received_ms=seq_range.received_ms,
)
