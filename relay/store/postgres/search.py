"""Where a search in PostgreSQL looks: which indexes list the events that may match."""

from collections.abc import Sequence
from functools import partial

from relay.store.dead_letters import sinks_by_state
from relay.store.postgres.conditions import PREFIX, PostgresConditions, prefix_values
from relay.store.postgres.driver import Database
from relay.store.search import Candidates, Indexes, Listed, of_deliveries
from relay.store.selection import Selection
from relay.store.sql import Condition, Sql
from relay.store.tiers import OF_TIER

PENDING_MAX = 10_000
"""Pending deliveries above which they are not taken from their indexes, which are by time and have
to be sorted."""
PREFIXED_MAX = 1000
"""Events with a prefix above which they are not taken from the index of ids, which has to be
sorted."""

_PENDING = sinks_by_state(*(f"status = 'pending' AND {belongs}" for belongs in OF_TIER.values()))

# Both are answered by an index alone where a vacuum has passed.
_ALL = Sql("SELECT count(*) FROM main.events")
_OF_SOURCE = Sql("SELECT count(*) FROM main.events WHERE source = :source")

# Seeks from one name to the next in the index, instead of reading all events.
_SOURCES = Sql("""
WITH RECURSIVE known (name) AS (
    (SELECT source FROM main.events ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT min(source) FROM main.events WHERE source > name) FROM known
    WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
""")


def indexes(conditions: PostgresConditions) -> Indexes:
    """Return the indexes of a store whose selections have these conditions."""
    return Indexes(partial(_candidates, conditions), _count_all)


def _candidates(conditions: PostgresConditions, db: Database, selection: Selection) -> Candidates:
    if (event_id := selection.id) is not None:
        return Candidates(_by_source(db, selection.source, Condition("id = :id", {"id": event_id})))
    if (prefix := selection.id_prefix) is not None:
        fits = Condition(PREFIX, prefix_values(prefix))
        candidates = Candidates(_by_source(db, selection.source, fits))
        if candidates.are_few(db, PREFIXED_MAX):
            return candidates
    if (person := selection.person_number) is not None:
        # An index of people would cost a page per event when the audience is counted, and
        # these rows are so small that a search gets through them quickly.
        counted = Condition("person = :person", {"person": person})
        uncounted = Condition("TRUE", {"uncounted": conditions.uncounted(db, person)})
        lists = [
            Listed("main.audience", "event", counted),
            Listed("unnest(CAST(:uncounted AS bigint[])) AS u (event)", "event", uncounted),
        ]
        return Candidates(lists, is_counted=False)
    if selection.status == "dead":
        return of_deliveries(db, selection.sink)
    if selection.status == "pending":
        candidates = of_deliveries(db, selection.sink, _PENDING)
        if candidates.are_few(db, PENDING_MAX):
            return candidates
    return Candidates()


def _by_source(db: Database, source: str | None, fits: Condition) -> list[Listed]:
    """List events of a source or of all, by the index that has both source and id."""
    of = sources(db) if source is None else [source]
    return [
        Listed(
            "main.events",
            "seq",
            Condition(
                f"source = :source{number} AND {fits.sql}",
                {f"source{number}": each, **fits.values},
            ),
        )
        for number, each in enumerate(of)
    ]


def sources(db: Database) -> Sequence[str]:
    """Return the sources of all stored events, sorted."""
    return [name for (name,) in db.execute(_SOURCES).fetchall()]


def _count_all(db: Database, source: str | None) -> int:
    sql = _ALL if source is None else _OF_SOURCE
    return int(db.execute(sql, {"source": source}).fetchall()[0][0])
