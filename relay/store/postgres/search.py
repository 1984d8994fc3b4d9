"""Queries of searches in PostgreSQL."""

from functools import partial

from msgspec.structs import replace

from relay.store.keyed_digests import PersonDigests
from relay.store.postgres import operator_queries, seq_range
from relay.store.postgres.candidates import Candidates
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.selection import Selection
from relay.store.stepwise_search import Plan, SearchQueries

# Both are answered by an index alone where a vacuum has passed.
_ALL = "SELECT count(*) FROM relay.events"
_OF_SOURCE = "SELECT count(*) FROM relay.events WHERE source = %s"


def queries(digests: PersonDigests) -> SearchQueries[Database]:
    """Return the queries for a store whose people have these digests."""

    def plan(db: Database, selection: Selection) -> Plan[Database]:
        return Plan(
            # The candidates take the place of the list of all of a person's events.
            replace(selection, person=None) if selection.id is None else selection,
            Candidates.of(db, selection, digests),
            seq_range.seq_range(db, selection),
        )

    return SearchQueries(
        plan=plan,
        events=partial(operator_queries.events, digests=digests),
        count=partial(operator_queries.count, digests=digests),
        count_all=_count_all,
        received_ms=seq_range.received_ms,
    )


def _count_all(db: Database, source: str | None) -> int:
    rows = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, (storable(source),))
    return int(rows.fetchall()[0][0])
