"""The store on PostgreSQL, which several relays share."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from relay.core.clock import Clock
from relay.store.postgres import keys, schema
from relay.store.postgres.driver import Connection
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.shared import Shared


class PostgresStore:
    """Fulfils `relay.store.Store`; made by `open_store`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

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
) -> PostgresStore:
    """Connect and migrate.

    `committed` is passed the seconds of each transaction.
    """
    dsn = settings.dsn.reveal()
    connections = [Connection(dsn, settings.schema) for _ in range(5)]
    writer, leaser, reader, searcher, pager = connections
    try:
        now_ms = clock.now_ms()
        await writer.run(lambda db: schema.migrate(db, settings.schema, now_ms=now_ms))
        digests, tokens = await writer.run(keys.digests)
    except BaseException:
        for each in connections:
            await each.close()
        raise
    return PostgresStore(
        Shared(
            leaser=leaser,
            reader=reader,
            searcher=searcher,
            pager=pager,
            writer=GroupCommit(writer, clock=clock, committed=committed),
            digests=digests,
            tokens=tokens,
        )
    )
