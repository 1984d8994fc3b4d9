"""Keeping of unverified requests in SQLite, the engine's part of the subject."""

from relay.core.authentication import UnverifiedRequest
from relay.store.quarantine import Quarantine
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import SqliteRepository

_KEEP = """
INSERT INTO quarantine (source, received_at, size, signature, headers, body)
VALUES (?, ?, ?, ?, ?, ?)
"""
_COUNT_KEPT = "UPDATE rotations SET kept = kept + 1 WHERE source = ?"


class SqliteQuarantine(SqliteRepository, Quarantine):
    """Counts what it keeps."""

    async def keep(self, request: UnverifiedRequest) -> None:
        self._room.require()
        await self._writer.transact(lambda db: _keep(db, request))


def _keep(db: sqlite3.Connection, request: UnverifiedRequest) -> None:
    source, received_ms, *contents = request
    db.execute(_KEEP, (source, received_ms, request.size, *contents))
    db.execute(_COUNT_KEPT, (source,))
