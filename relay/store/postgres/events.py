"""Stored events in PostgreSQL, as operators read them."""

from collections.abc import Sequence

from relay.core.routing import Route
from relay.store.events import Accepted, EventRecord, Events, History, Queued
from relay.store.postgres import operator_queries, queue
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.replays import Mark
from relay.store.selection import Selection

_ACCEPTED = """
SELECT seq, received_at, source, id, kind,
    ARRAY(SELECT sink FROM relay.deliveries WHERE event = e.seq ORDER BY sink), reconstructed <> 0
FROM relay.events e WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT %s
"""


class PostgresEvents(PostgresRepository, Events):
    """Events of which a later one may be seen before an earlier one."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._digests = shared.digests
        self._attempts = VisibleNumbers(shared.reader, "attempts", "number")

    async def page(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        return await self._searcher.read(
            lambda db: operator_queries.events(db, selection, routes, self._digests, limit=limit)
        )

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._reader.read(
            lambda db: operator_queries.named(db, beginning, source=source, limit=limit)
        )

    async def history(self, seq: int) -> History | None:
        return await self._reader.read(lambda db: operator_queries.history(db, seq))

    async def queued(self, seq: int) -> Sequence[Queued]:
        return await self._reader.read(lambda db: queue.queued(db, seq))

    async def newest(self) -> Mark:
        # The event first: an attempt may be of an older one, but not of a newer.
        event = await self._shared.events.last()
        return Mark(event, await self._reader.read(operator_queries.last_attempt))

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        values = (after, await self._shared.events.beyond(after), limit)
        return await self._reader.read(
            lambda db: [Accepted(*row) for row in db.execute(_ACCEPTED, values)]
        )

    async def _visible_attempt(self, after: int) -> int:
        return await self._attempts.beyond(after)

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(operator_queries.sources)

    async def has_kind(self, glob: str) -> bool:
        return await self._searcher.read(lambda db: operator_queries.has_kind(db, glob))
