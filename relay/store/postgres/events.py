"""Stored events in PostgreSQL: found by source and id, and their places in queues."""

from collections.abc import Sequence

from relay.store.events import AHEAD_MAX, EVENT, EventRecord, Events, Queued, exact_or_longer
from relay.store.postgres.conditions import PREFIX, prefix_values
from relay.store.postgres.driver import Database
from relay.store.postgres.search import sources
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.postgres.text import storable
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.replays import Mark
from relay.store.sql import Sql
from relay.store.tiers import OF_TIER

_LAST_ATTEMPT = Sql("SELECT coalesce(max(number), 0) FROM main.attempts")
# Source by source, so that the index gives the first of each.
_NAMED = Sql(f"""
SELECT found.* FROM unnest(CAST(:sources AS text[])) AS s (name), LATERAL (
    SELECT {EVENT} FROM main.events AS e
    WHERE e.source = s.name AND e.{PREFIX} ORDER BY e.id LIMIT :limit
) AS found ORDER BY found.source, found.id
""")
# The counts end at a limit, so that each reads a bounded piece of an index.
_QUEUED = Sql(
    " UNION ALL ".join(
        f"""
SELECT own.sink, (
    SELECT count(*) FROM (
        SELECT 1 FROM main.deliveries WHERE sink = own.sink AND status = 'pending' AND {belongs}
            AND (due_at, event) < (own.due_at, own.event)
        LIMIT {AHEAD_MAX + 1}
    ) AS ahead
), (
    SELECT count(*) FROM (
        SELECT 1 FROM main.deliveries
        WHERE sink = own.sink AND status = 'pending' AND turn = own.turn AND event < own.event
        LIMIT {AHEAD_MAX + 1}
    ) AS of_turn
)
FROM (
    SELECT event, sink, due_at, turn FROM main.deliveries
    WHERE event = :event AND status = 'pending' AND {belongs}
) AS own
"""
        for belongs in OF_TIER.values()
    )
)


class PostgresEvents(PostgresRepository, Events):
    """Events of which a later one may be seen before an earlier one."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._attempts = VisibleNumbers(shared.reader, "attempts", "number")

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._reader.read(lambda db: _named(db, beginning, source, limit))

    async def queued(self, seq: int) -> Sequence[Queued]:
        return await self._reader.read(
            lambda db: [Queued.of(*row) for row in db.execute(_QUEUED, {"event": seq})]
        )

    async def newest(self) -> Mark:
        # The event first: an attempt may be of an older one, but not of a newer.
        event = await self._shared.events.last()
        ((attempt,),) = await self._reader.read(lambda db: db.execute(_LAST_ATTEMPT).fetchall())
        return Mark(event, attempt)

    async def _visible_event(self, after: int) -> int:
        return await self._shared.events.beyond(after)

    async def _visible_attempt(self, after: int) -> int:
        return await self._attempts.beyond(after)

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(sources)


def _named(db: Database, beginning: str, source: str | None, limit: int) -> list[EventRecord]:
    values = prefix_values(beginning)
    of = sources(db) if source is None else [storable(source)]
    found = db.execute(_NAMED, {**values, "sources": of, "limit": limit}).fetchall()
    return exact_or_longer(db, found, values["id_prefix"], limit)
