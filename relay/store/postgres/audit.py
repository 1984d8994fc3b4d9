"""The audit log in PostgreSQL, with digests instead of e-mail addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from relay.store.audit import ROWS_MAX, Change, ChangeRecord, record_of
from relay.store.postgres import numbers
from relay.store.postgres.driver import Database
from relay.store.postgres.shared import Part
from relay.store.postgres.text import storable
from relay.store.pseudonyms import Pseudonymizer

_BEGIN = """
INSERT INTO relay.audit (id, begun_at, operation, target, asked, actor, address, via)
OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING
"""
_FORGET = "DELETE FROM relay.audit WHERE id <= %s"
_END = "UPDATE relay.audit SET ended_at = %s, status = %s, result = %s WHERE id = %s"
_NEWEST = """
SELECT id, begun_at, ended_at, operation, target, status, actor, address, via, asked, result
FROM relay.audit
WHERE (%(before)s::bigint IS NULL OR id < %(before)s)
    AND (%(since)s::bigint IS NULL OR begun_at >= %(since)s)
    AND (%(until)s::bigint IS NULL OR begun_at < %(until)s)
    AND {operation}
ORDER BY id DESC LIMIT %(limit)s
"""
_ANY, _ONE = _NEWEST.format(operation="true"), _NEWEST.format(operation="operation = %(operation)s")
"""Two texts, so that a plan for any value takes the index for the second one."""


class PostgresAudit(Part):
    """Fulfils `relay.store.audit.Audit`."""

    def pseudonymized(self, change: Change) -> Change:
        return Pseudonymizer(self._shared.digests).pseudonymized(change)

    async def begin(self, change: Change, *, now_ms: int) -> int:
        number = await numbers.draw(self._reader, "audit_id_seq")
        request = (change.operation, _text(change.target), orjson.dumps(change.asked).decode())
        client = (change.actor, change.address, _text(change.via))

        def begin(db: Database) -> int:
            db.execute(_BEGIN, (number, now_ms, *request, *client))
            db.execute(_FORGET, (number - ROWS_MAX,))
            return number

        return await self._shared.background.transact(begin)

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        await self._shared.background.execute(
            _END, now_ms, status, orjson.dumps(result).decode(), number
        )

    async def newest(
        self,
        *,
        before: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        limit: int,
    ) -> Sequence[ChangeRecord]:
        chosen = {
            "before": before,
            "since": since_ms,
            "until": until_ms,
            "operation": None if operation is None else storable(operation),
            "limit": limit,
        }
        query = _ANY if operation is None else _ONE
        return await self._reader.read(
            lambda db: [record_of(row) for row in db.execute(query, chosen)]
        )


def _text(text: str | None) -> str | None:
    return None if text is None else storable(text)
