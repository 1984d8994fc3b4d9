"""Unreadable requests in PostgreSQL: queries and removal; `accept` inserts them."""

from collections.abc import Sequence

from relay.store.postgres.driver import Row
from relay.store.postgres.shared import Part
from relay.store.rows import is_damaged
from relay.store.unreadable import UnreadableContent, UnreadableReason, UnreadableRecord

_COLUMNS = "number, encode(digest, 'hex'), source, received_at, reason, octet_length(body)"
_NEWEST = f"""
SELECT {_COLUMNS} FROM relay.unreadable
WHERE %(before)s::bigint IS NULL OR number < %(before)s ORDER BY number DESC LIMIT %(limit)s
"""
_FIND = f"""
SELECT {_COLUMNS}, headers, body FROM relay.unreadable WHERE number = ANY(ARRAY(
    SELECT number FROM relay.unreadable
    WHERE starts_with(encode(digest, 'hex'), %(prefix)s)
        AND (%(source)s::text IS NULL OR source = %(source)s) LIMIT %(limit)s
)) ORDER BY number DESC
"""
_REASONS = """
SELECT source, reason, count(*), min(received_at), max(received_at) FROM relay.unreadable
GROUP BY source, reason ORDER BY count(*) DESC, source, reason COLLATE "C"
"""
_DISCARD = "DELETE FROM relay.unreadable WHERE source = %s AND digest = %s"


class PostgresUnreadable(Part):
    """Fulfils `relay.store.unreadable.UnreadableRequests`."""

    async def newest(self, *, before: int | None, limit: int) -> Sequence[UnreadableRecord]:
        values = {"before": before, "limit": limit}
        return await self._reader.read(
            lambda db: [UnreadableRecord(*row) for row in db.execute(_NEWEST, values)]
        )

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        values = {"prefix": prefix, "source": source, "limit": limit}
        return await self._reader.read(
            lambda db: [_content(row) for row in db.execute(_FIND, values)]
        )

    async def reasons(self) -> Sequence[UnreadableReason]:
        return await self._searcher.read(
            lambda db: [UnreadableReason(*row) for row in db.execute(_REASONS)]
        )

    async def discard(self, request: UnreadableRecord) -> None:
        await self._shared.background.execute(_DISCARD, request.source, bytes.fromhex(request.id))
        self._shared.vacuum.start("unreadable")


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    request = UnreadableRecord(*record)
    damaged = is_damaged(body, bytes.fromhex(request.id))
    return UnreadableContent(request, headers, body, damaged)
