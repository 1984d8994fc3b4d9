"""Queries of searches in PostgreSQL."""

import re
from functools import partial

from msgspec.structs import replace

from relay.core.event import KINDS
from relay.store.globs import regular_expression
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres import operator_queries
from relay.store.postgres.candidates import Candidates
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.search import Plan, SearchQueries, seq_range
from relay.store.selection import Selection

# Both are answered by an index alone where a vacuum has passed.
_ALL = "SELECT count(*) FROM relay.events"
_OF_SOURCE = "SELECT count(*) FROM relay.events WHERE source = %s"

_LAST = """
SELECT max(last_at) FROM (
    SELECT kind, source, last_at FROM relay.totals
    UNION ALL SELECT kind, source, last_at FROM relay.added_totals
) AS known
WHERE kind = ANY(%b::text[]) AND (%s::text IS NULL OR source = %s)
"""


def queries(digests: PersonDigests) -> SearchQueries[Database]:
    """Return the queries for a store whose people have these digests."""

    def plan(db: Database, selection: Selection) -> Plan[Database]:
        return Plan(
            # The candidates take the place of the list of all of a person's events.
            replace(selection, person=None) if selection.id is None else selection,
            Candidates.of(db, selection, digests),
            seq_range(db, selection, partial(_newest_ms, db)),
        )

    return SearchQueries(
        plan=plan,
        events=partial(operator_queries.events, digests=digests),
        count=partial(operator_queries.count, digests=digests),
        count_all=_count_all,
    )


def _count_all(db: Database, source: str | None) -> int:
    rows = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, (storable(source),))
    return int(rows.fetchall()[0][0])


def _newest_ms(db: Database, kind: str, source: str | None) -> int | None:
    matches = re.compile(regular_expression(kind)).fullmatch
    kinds = [each for each in (*KINDS, "other") if matches(each)]
    if kind not in KINDS:
        kinds.append("other")
    where = None if source is None else storable(source)
    newest: int | None = db.execute(_LAST, (kinds, where, where)).fetchall()[0][0]
    return newest
