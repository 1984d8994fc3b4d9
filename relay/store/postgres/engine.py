"""PostgreSQL as an engine: fulfils `relay.store.engines.Engine`."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from relay.core.clock import Clock, SynchronizedClock
from relay.core.errors import Fault, StoreLacks
from relay.core.totals import Total
from relay.store import Preflight, Reached
from relay.store.integrity import Inspection
from relay.store.postgres import integrity, opening, schema
from relay.store.postgres.access import Access, tried
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, parse, psycopg
from relay.store.postgres.errors import startup_error
from relay.store.postgres.server import location, warnings
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.store import PostgresStore

__all__ = [
    "faults",
    "inspect",
    "is_held",
    "location",
    "open_store",
    "preflight",
    "reach",
    "restore",
]


def faults(settings: PostgresSettings) -> tuple[Fault, ...]:
    try:
        parse(settings.dsn.reveal())
    except ValueError as error:
        return (Fault("store.dsn", str(error)),)
    return ()


def preflight(_: PostgresSettings) -> Preflight:
    return Preflight()


async def reach(settings: PostgresSettings) -> Reached | None:
    def look(db: Database) -> Reached:
        return Reached(schema.preview(db, settings.schema), warnings(db))

    return await asyncio.to_thread(tried, settings.dsn.reveal(), settings.schema, look)


async def open_store(
    settings: PostgresSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None],
    counted: Callable[[Total], None],
) -> PostgresStore:
    synchronized = SynchronizedClock(clock)
    try:
        return await opening.open_store(
            settings,
            clock=synchronized,
            committed=committed,
            counted=counted,
            synchronize=synchronized.adopt,
        )
    except psycopg.Error as error:
        raise startup_error(error) from None


def is_held(_: PostgresSettings) -> bool:
    return False


async def inspect(settings: PostgresSettings) -> Inspection:
    return await integrity.inspect(partial(Connection, Access.of(settings)), settings.schema)


async def restore(
    _: PostgresSettings,
    copy: Path,  # noqa: ARG001
    *,
    now_ms: int,  # noqa: ARG001
) -> tuple[Inspection, Path | None]:
    raise StoreLacks(
        "PostgreSQL restores this store: while no relay runs, use pg_restore or psql with what "
        "pg_dump has written, into an empty schema, or the server's own way to a base backup"
    )
