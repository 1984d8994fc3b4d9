"""Search for damaged bodies, and for rows of events that are missing.

The server computes the digests, in steps: a long statement would keep VACUUM from removing rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

from relay.store.integrity import DAMAGED_BODY
from relay.store.postgres.driver import Database

STEP_ROWS = 500

_BODIES = """
SELECT max(key), array_agg(name ORDER BY key) FILTER (WHERE is_damaged) FROM (
    SELECT {key} AS key, {name} AS name, sha256(body) <> digest AS is_damaged
    FROM relay.{table} WHERE {key} > %s AND {key} <= %s AND body IS NOT NULL ORDER BY {key} LIMIT %s
) AS step
"""
# One by one, because a plan for all of them at once reads all events in each step.
_ORPHANS = """
SELECT max(step.event), array_agg(DISTINCT step.event) FILTER (WHERE found.seq IS NULL)
FROM (
    SELECT event FROM relay.{table} WHERE event > %s AND event <= %s ORDER BY event LIMIT %s
) AS step LEFT JOIN LATERAL (
    SELECT e.seq FROM relay.events AS e WHERE e.seq = step.event OFFSET 0
) AS found ON TRUE
"""
_LAST = "SELECT coalesce(max({key}), 0) FROM relay.{table}"
_EVENT = "'event ' || id || ' of source ' || source"
_UNREADABLE = "'unreadable request ' || left(encode(digest, 'hex'), 12) || ' of source ' || source"


class _Search(NamedTuple):
    table: str
    key: str
    query: str
    fault: str


_SEARCHES = (
    _Search("events", "seq", _BODIES.replace("{name}", _EVENT), f"{{}}: {DAMAGED_BODY}"),
    _Search(
        "unreadable", "number", _BODIES.replace("{name}", _UNREADABLE), f"{{}}: {DAMAGED_BODY}"
    ),
    _Search("deliveries", "event", _ORPHANS, "deliveries are of the missing event {}"),
    _Search("attempts", "event", _ORPHANS, "attempts are of the missing event {}"),
)


def faults(db: Database) -> tuple[str, ...]:
    """Read all bodies and rows of events that are stored by now; return their faults."""
    return tuple(each.fault.format(number) for each in _SEARCHES for number in _damaged(db, each))


def _damaged(db: Database, search: _Search) -> Iterator[object]:
    names = {"table": search.table, "key": search.key}
    ((end,),) = db.execute(_LAST.format(**names)).fetchall()
    query = search.query.format(**names)
    last: int | None = 0
    while last is not None:
        ((last, numbers),) = db.execute(query, (last, end, STEP_ROWS)).fetchall()
        yield from numbers or ()
