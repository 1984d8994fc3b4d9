"""VACUUM of the tables from which data was removed, so that old row versions go soon.

PostgreSQL itself would do it once a share of a table's rows has changed, which a single person's
rows may never be.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from relay.core.clock import Clock
from relay.core.errors import StoreError
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, psycopg
from relay.store.postgres.errors import error_name
from relay.telemetry import log

WAIT_S = 5.0
"""Time that an erasure waits for the VACUUM, which continues afterwards."""

RETRY_S = 30.0

ERASABLE = (
    "attempts",
    "audience",
    "audience_days",
    "audience_weeks",
    "deliveries",
    "erasures",
    "events",
    "quarantine",
    "replays",
    "unreadable",
    "videos",
    "viewers",
)
"""Tables from which an erasure removes data."""

_LAST = "SELECT coalesce(max(id), 0) FROM relay.erasures WHERE ended_at IS NOT NULL"
_NOTE = """
INSERT INTO relay.state AS s (name, value) VALUES ('vacuumed', %s)
ON CONFLICT (name) DO UPDATE SET value = greatest(s.value, excluded.value)
"""
_UNFINISHED = f"""
SELECT ({_LAST}) > coalesce((SELECT value FROM relay.state WHERE name = 'vacuumed'), 0)
"""


class Vacuum:
    """Runs on a connection of its own, and again until it succeeds."""

    def __init__(self, connect: Callable[[], Connection], *, clock: Clock) -> None:
        self._connect = connect
        self._tables: set[str] = set()
        self._task: asyncio.Task[bool] | None = None
        self._sampled = log.Sampled(clock)

    def start(self, *tables: str) -> "asyncio.Task[bool]":
        """Start with the tables as they are now; the result is whether it was permitted."""
        self._tables.update(tables)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def run(self, *tables: str) -> bool:
        """Wait for `WAIT_S`; True if the tables have been vacuumed."""
        task = self.start(*tables)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        return bool(done) and not task.cancelled() and task.result()

    async def close(self) -> None:
        """Stop after the current table."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> bool:
        permitted = True
        while self._tables:
            tables, self._tables = self._tables, set()
            try:
                permitted = await self._vacuum(tables) and permitted
            except (psycopg.Error, StoreError) as error:
                self._sampled.line("store.vacuum_failed", reason=error_name(error))
                self._tables |= tables
                await asyncio.sleep(RETRY_S)
        return permitted

    async def _vacuum(self, tables: set[str]) -> bool:
        connection = self._connect()
        try:
            last = await connection.run(lambda db: int(db.execute(_LAST).fetchall()[0][0]))
            done = [await connection.run(partial(_vacuum, table=each)) for each in sorted(tables)]
            if all(done) and tables.issuperset(ERASABLE):
                await connection.run(lambda db: db.execute(_NOTE, (last,)).rowcount)
        finally:
            await connection.cut_off()
        return all(done)


def is_unfinished(db: Database) -> bool:
    """Whether an erasure was not followed by a VACUUM of all its tables."""
    return bool(db.execute(_UNFINISHED).fetchall()[0][0])


def _vacuum(db: Database, table: str) -> bool:
    """False where only another role may: then PostgreSQL only warns."""
    owned = (
        f"SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'relay.{table}'::regclass"
    )
    if not db.execute(owned).fetchall()[0][0]:
        return False
    # Cannot take parameters, and not inside a transaction.
    db.execute(f"VACUUM relay.{table}")
    return True
