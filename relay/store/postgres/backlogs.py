"""Backlogs of all sinks: each sink's owner counts on a slow beat, every relay reads.

Those of sinks without an owner, because no config names them, are counted with the maintenance.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay.core.clock import Clock
from relay.store import Backlog
from relay.store.ownership import MAINTENANCE
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.fences import Fences
from relay.store.tiers import OF_TIER

COST_FACTOR = 20
"""A count waits for this many times the duration of the last one: it reads all that is pending."""

# A step per sink, because no index tells the sinks alone.
_SINKS_OF = """
SELECT sink FROM (
    WITH RECURSIVE each AS (
        (SELECT sink FROM relay.deliveries WHERE {condition} ORDER BY sink LIMIT 1)
        UNION ALL
        SELECT (
            SELECT d.sink FROM relay.deliveries AS d
            WHERE {condition} AND d.sink > each.sink ORDER BY d.sink LIMIT 1
        ) FROM each WHERE each.sink IS NOT NULL
    )
    SELECT sink FROM each WHERE sink IS NOT NULL
) AS found
"""
_PENDING = [f"status = 'pending' AND {belongs}" for belongs in OF_TIER.values()]
_SINKS = " UNION ".join(
    _SINKS_OF.format(condition=condition) for condition in (*_PENDING, "status = 'dead'")
)
# The first pending event that no replay has opened is the oldest one.
_COUNT_PENDING = " UNION ALL ".join(
    f"""
SELECT count(*) AS pending, min(event) FILTER (WHERE replay IS NULL) AS first,
    {"count(*) FILTER (WHERE due_at > %(now)s)" if tier == "tried" else "0"} AS retrying
FROM relay.deliveries AS d WHERE d.sink = own.sink AND status = 'pending' AND {belongs}
"""
    for tier, belongs in OF_TIER.items()
)
# All in one statement, because each relay runs it every second.
_COUNT = f"""
WITH counted AS MATERIALIZED (
    SELECT
        own.sink, p.pending, p.retrying,
        (
            SELECT count(*) FROM relay.deliveries AS d WHERE d.sink = own.sink AND status = 'dead'
        ) AS dead,
        (SELECT received_at FROM relay.events WHERE seq = p.first) AS oldest_at
    FROM (SELECT unnest(%(own)b::text[]) COLLATE "C" AS sink) AS own,
        LATERAL (
            SELECT sum(pending)::bigint AS pending, min(first) AS first,
                sum(retrying)::bigint AS retrying
            FROM ({_COUNT_PENDING}) AS tier
        ) AS p
),
written AS (
    INSERT INTO relay.backlogs AS b (sink, pending, dead, oldest_at)
    SELECT sink, pending, dead, oldest_at FROM counted ORDER BY sink
    ON CONFLICT (sink) DO UPDATE
    SET pending = excluded.pending, dead = excluded.dead, oldest_at = excluded.oldest_at
    WHERE (b.pending, b.dead, b.oldest_at)
        IS DISTINCT FROM (excluded.pending, excluded.dead, excluded.oldest_at)
)
SELECT sink, pending, dead, oldest_at, retrying FROM counted
UNION ALL SELECT sink, pending, dead, oldest_at, 0 FROM relay.backlogs
WHERE sink <> ALL (%(own)b::text[])
UNION ALL SELECT sink, NULL, NULL, NULL, 0 FROM ({_SINKS}) AS s
WHERE sink <> ALL (%(own)b::text[])
    AND NOT EXISTS (SELECT FROM relay.backlogs AS b WHERE b.sink = s.sink)
"""
_OWNED = """
SELECT sink FROM relay.ownership WHERE holder IS NOT NULL AND expires_at > clock_timestamp()
"""
_READ = "SELECT sink, pending, dead, oldest_at FROM relay.backlogs"


class _Own(NamedTuple):
    """What this relay keeps of its count of one sink."""

    retrying: int
    ended: int


class Backlogs:
    """Counts the backlogs of this relay's sinks, and reads those of all."""

    def __init__(
        self, connection: Connection, fences: Fences, ended: Mapping[str, int], clock: Clock
    ) -> None:
        """`ended` are the deliveries that this relay has ended, by sink; it grows."""
        self._connection = connection
        self._fences = fences
        self._ended = ended
        self._own: dict[str, _Own] = {}
        """As of the last count."""
        self._clock = clock
        self._known: set[str] = set()
        """Sinks that the last count has found, of all relays."""
        self._seen: set[str] = set()
        self._count_from_s = -math.inf

    def note_new(self, sinks: Iterable[str]) -> None:
        """Note the sinks of new deliveries: all of them may have been settled by the next count."""
        self._seen.update(sinks)

    async def read(self) -> Mapping[str, Backlog]:
        """Fulfil `Store.backlogs`."""
        rows = await self._connection.read(self._refresh)
        # A receipt in the future, from a clock that was ahead, would give a negative age.
        now_ms = self._clock.now_ms()
        return {
            sink: Backlog(
                pending, dead, None if oldest_ms is None else min(oldest_ms, now_ms), *own
            )
            for sink, pending, dead, oldest_ms, *_ in rows
            for own in (self._own.get(sink) or _Own(0, self._ended.get(sink, 0)),)
        }

    def _refresh(self, db: Database) -> list[Row]:
        started_s = self._clock.monotonic()
        if started_s < self._count_from_s:
            return db.execute(_READ).fetchall()
        owned = None
        if self._fences.holds(MAINTENANCE):
            owned = {sink for (sink,) in db.execute(_OWNED).fetchall()}

        def is_ours(sink: str) -> bool:
            return self._fences.holds(sink) or (owned is not None and sink not in owned)

        ours = {sink for sink in self._known | set(self._seen) if is_ours(sink)}
        ended = dict(self._ended)
        now_ms = self._clock.now_ms()
        rows = _count(db, ours, now_ms=now_ms)
        new = {row[0] for row in rows if row[0] not in ours and is_ours(row[0])}
        if new:
            rows = _count(db, ours | new, now_ms=now_ms)
        self._known = {row[0] for row in rows}
        self._own = {row[0]: _Own(row[4], ended.get(row[0], 0)) for row in rows if is_ours(row[0])}
        now_s = self._clock.monotonic()
        self._count_from_s = now_s + COST_FACTOR * (now_s - started_s)
        return [row for row in rows if row[1] is not None]


def _count(db: Database, sinks: Iterable[str], *, now_ms: int) -> list[Row]:
    """Count the backlogs of some sinks, and return them with those that others have counted.

    A sink that nobody has counted is returned without figures.
    """
    return db.execute(_COUNT, {"own": list(sinks), "now": now_ms}).fetchall()
