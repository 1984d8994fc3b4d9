"""The audit log in SQLite, with digests instead of e-mail addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from relay.store.audit import ROWS_MAX, Change, ChangeRecord, record_of
from relay.store.pseudonyms import Pseudonymizer
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

_BEGIN = """
INSERT INTO audit (begun_at, operation, target, asked, actor, address, via)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET = "DELETE FROM audit WHERE id <= ?"
_END = "UPDATE audit SET ended_at = ?, status = ?, result = ? WHERE id = ?"
_NEWEST = """
SELECT id, begun_at, ended_at, operation, target, status, actor, address, via, asked, result
FROM audit
WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR begun_at >= ?2)
    AND (?3 IS NULL OR begun_at < ?3) AND {operation}
ORDER BY id DESC LIMIT ?5
"""
_ANY, _ONE = _NEWEST.format(operation="?4 IS NULL"), _NEWEST.format(operation="operation = ?4")
"""Two texts, so that SQLite plans the second one by its index."""


class SqliteAudit(Part):
    """Fulfils `relay.store.audit.Audit`."""

    def pseudonymized(self, change: Change) -> Change:
        return Pseudonymizer(self._shared.digests).pseudonymized(change)

    async def begin(self, change: Change, *, now_ms: int) -> int:
        def begin(db: sqlite3.Connection) -> int:
            request = (change.operation, change.target, orjson.dumps(change.asked).decode())
            client = (change.actor, change.address, change.via)
            number = db.execute(_BEGIN, (now_ms, *request, *client)).lastrowid or 0
            db.execute(_FORGET, (number - ROWS_MAX,))
            return number

        return await self._writer.transact(begin)

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        await self._writer.execute(_END, now_ms, status, orjson.dumps(result).decode(), number)

    async def newest(
        self,
        *,
        before: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        limit: int,
    ) -> Sequence[ChangeRecord]:
        chosen = (before, since_ms, until_ms, operation, limit)
        query = _ANY if operation is None else _ONE
        return await self._reader.read(
            lambda db: [record_of(row) for row in db.execute(query, chosen)]
        )
