"""Backups of PostgreSQL, which its own programs make."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from relay.core.errors import StoreLacks


class PostgresBackups:
    """Fulfils `relay.store.backup.Backups`, by refusal."""

    instead = (
        "PostgreSQL makes the backups of this store: use pg_dump for its schema, or pg_basebackup "
        "and a WAL archive for the whole server"
    )

    def clear(self) -> None:
        """Do nothing: there are no copies."""

    @asynccontextmanager
    async def copied(self) -> AsyncIterator[Path]:
        """Raise StoreLacks."""
        raise StoreLacks(self.instead)
        yield
