"""Stored events in SQLite, as operators read them."""

from collections.abc import Sequence

from relay.core.routing import Route
from relay.store.events import Accepted, EventRecord, Events, History, Queued
from relay.store.replays import Mark
from relay.store.rows import Row
from relay.store.selection import Selection
from relay.store.sqlite import operator_queries, queue
from relay.store.sqlite.shared import SqliteRepository

_ACCEPTED = """
SELECT seq, received_at, source, id, kind, reconstructed,
    (SELECT group_concat(sink) FROM deliveries WHERE event = e.seq)
FROM events e WHERE seq > ? ORDER BY seq LIMIT ?
"""
_LAST = (1 << 63) - 1


class SqliteEvents(SqliteRepository, Events):
    """Events of which all that are committed can be seen."""

    async def page(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        return await self._searcher.read(
            lambda db: operator_queries.events(db, selection, routes, limit=limit)
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
        return await self._reader.read(operator_queries.newest)

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        return await self._reader.read(
            lambda db: [_accepted(row) for row in db.execute(_ACCEPTED, (after, limit))]
        )

    async def _visible_attempt(self, _: int) -> int:
        return _LAST

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(operator_queries.sources)

    async def has_kind(self, glob: str) -> bool:
        return await self._searcher.read(lambda db: operator_queries.has_kind(db, glob))


def _accepted(row: Row) -> Accepted:
    number, received_ms, source, id_, kind, reconstructed, sinks = row
    names = sorted(sinks.split(",")) if sinks else []
    return Accepted(number, received_ms, source, id_, kind, names, bool(reconstructed))
