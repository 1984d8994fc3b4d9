"""Numbers of accepted events by kind: each acceptance adds rows, which are summed up later."""

from relay.core.totals import Total
from relay.store.postgres.driver import Database

ADDED_MAX = 1_000
"""Rows that acceptances have added, above which a reader sums them up."""

_READ = """
SELECT source, kind, milestone, sum(events)::bigint, max(last_at), sum(added)::bigint FROM (
    SELECT source, kind, milestone, events, last_at, 0 AS added FROM relay.totals
    UNION ALL SELECT source, kind, milestone, events, last_at, 1 FROM relay.added_totals
) AS each
GROUP BY 1, 2, 3
"""
# Several relays may do it at once, each with rows of its own.
_SUM_UP = """
WITH taken AS (
    DELETE FROM relay.added_totals WHERE ctid = ANY (
        ARRAY(SELECT ctid FROM relay.added_totals FOR UPDATE SKIP LOCKED)
    )
    RETURNING source, kind, milestone, events, last_at
)
INSERT INTO relay.totals AS t (source, kind, milestone, events, last_at)
SELECT source, kind, milestone, sum(events), max(last_at) FROM taken GROUP BY 1, 2, 3
ORDER BY source COLLATE "C", kind COLLATE "C", milestone COLLATE "C"
ON CONFLICT (source, kind, milestone) DO UPDATE
SET events = t.events + excluded.events, last_at = greatest(t.last_at, excluded.last_at)
"""


def refresh(db: Database) -> list[Total]:
    """Return all totals of the store, and sum up what acceptances have added."""
    rows = db.execute(_READ).fetchall()
    if sum(added for *_, added in rows) > ADDED_MAX:
        db.execute(_SUM_UP)
    return [Total(*total) for *total, _ in rows]
