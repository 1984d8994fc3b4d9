"""The store on PostgreSQL, which several relays share."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from relay.core.clock import Clock
from relay.core.totals import Total
from relay.store import EngineVersion, StoreWarning
from relay.store.postgres import keys, place, schema
from relay.store.postgres.driver import Connection
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.shared import Shared


class PostgresStore:
    """Fulfils `relay.store.Store`; made by `open_store`."""

    unclean = False
    folder = None

    def __init__(
        self,
        settings: PostgresSettings,
        shared: Shared,
        *,
        clock: Clock,
        server: place.Server,
        counted: Callable[[Total], None],
    ) -> None:
        self._counted = counted
        self._shared = shared
        self._server = server
        self._size = place.Size(shared.reader, settings.schema, clock)
        self.location = place.location(settings)
        self.version = EngineVersion("postgres", server.version)

    def warnings(self) -> Sequence[StoreWarning]:
        return self._server.warnings

    async def size_bytes(self) -> int:
        return await self._size.measure()

    def space(self) -> None:
        return None

    async def inspect(self) -> None:
        """Do nothing: the server recovers from its own unclean stops."""

    async def close(self) -> None:
        """Close its connections; what has begun is finished."""
        shared = self._shared
        async with AsyncExitStack() as closing:
            for each in (shared.pager, shared.searcher, shared.reader):
                closing.push_async_callback(each.cut_off)
            closing.push_async_callback(shared.leaser.close)
            closing.push_async_callback(shared.writer.close)


async def open_store(
    settings: PostgresSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
) -> PostgresStore:
    """Connect and migrate; raises psycopg.Error and what `schema.migrate` raises.

    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk.
    """
    dsn = settings.dsn.reveal()
    connections = [Connection(dsn, settings.schema) for _ in range(5)]
    writer, leaser, reader, searcher, pager = connections
    try:
        now_ms = clock.now_ms()
        await writer.run(lambda db: schema.migrate(db, settings.schema, now_ms=now_ms))
        digests, tokens = await writer.run(keys.digests)
        server = await writer.run(place.Server.of)
    except BaseException:
        for each in connections:
            await each.close()
        raise
    shared = Shared(
        leaser=leaser,
        reader=reader,
        searcher=searcher,
        pager=pager,
        writer=GroupCommit(writer, clock=clock, committed=committed),
        digests=digests,
        tokens=tokens,
    )
    return PostgresStore(settings, shared, clock=clock, server=server, counted=counted)
