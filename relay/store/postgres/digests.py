"""Search for damaged bodies, and for rows of events that are missing.

The server computes the digests, in steps: a long statement would keep VACUUM from removing rows.
"""

from collections.abc import Iterator

from relay.store.integrity import DAMAGED_BODY
from relay.store.postgres.driver import Database

STEP_ROWS = 500

_BODIES = """
SELECT max(key), array_agg(name ORDER BY key) FILTER (WHERE is_damaged) FROM (
    SELECT {key} AS key, {name} AS name, sha256(body) <> digest AS is_damaged
    FROM relay.{table} WHERE {key} > %s AND body IS NOT NULL ORDER BY {key} LIMIT %s
) AS step
"""
# One by one, because a plan for all of them at once reads all events in each step.
_ORPHANS = """
SELECT max(step.event), array_agg(DISTINCT step.event) FILTER (WHERE found.seq IS NULL)
FROM (
    SELECT event FROM relay.{table} WHERE event > %s ORDER BY event LIMIT %s
) AS step LEFT JOIN LATERAL (
    SELECT e.seq FROM relay.events AS e WHERE e.seq = step.event OFFSET 0
) AS found ON TRUE
"""
_QUERIES = (
    (
        _BODIES.format(table="events", key="seq", name="'event ' || id || ' of source ' || source"),
        f"{{}}: {DAMAGED_BODY}",
    ),
    (
        _BODIES.format(
            table="unreadable",
            key="number",
            name="'unreadable request ' || left(encode(digest, 'hex'), 12) "
            "|| ' of source ' || source",
        ),
        f"{{}}: {DAMAGED_BODY}",
    ),
    (_ORPHANS.format(table="deliveries"), "deliveries are of the missing event {}"),
    (_ORPHANS.format(table="attempts"), "attempts are of the missing event {}"),
)


def faults(db: Database) -> tuple[str, ...]:
    """Read all bodies and rows of events; return a fault for each that is not right."""
    return tuple(text.format(number) for query, text in _QUERIES for number in _damaged(db, query))


def _damaged(db: Database, query: str) -> Iterator[object]:
    last: int | None = 0
    while last is not None:
        ((last, numbers),) = db.execute(query, (last, STEP_ROWS)).fetchall()
        yield from numbers or ()
