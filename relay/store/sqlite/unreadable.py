"""Unreadable requests in SQLite: queries and removal; `accept` inserts them."""

from collections.abc import Sequence

from relay.store.rows import is_damaged
from relay.store.sqlite.driver import Row
from relay.store.sqlite.shared import Part
from relay.store.unreadable import UnreadableContent, UnreadableReason, UnreadableRecord

_COLUMNS = "rowid, lower(hex(digest)), source, received_at, reason, length(body)"
_NEWEST = f"""
SELECT {_COLUMNS} FROM unreadable WHERE ?1 IS NULL OR rowid < ?1 ORDER BY rowid DESC LIMIT ?2
"""
# The index of the primary key answers the inner query without reading bodies.
_FIND = f"""
SELECT {_COLUMNS}, headers, body FROM unreadable WHERE rowid IN (
    SELECT rowid FROM unreadable
    WHERE lower(hex(digest)) GLOB ?1 || '*' AND (?2 IS NULL OR source = ?2) LIMIT ?3
) ORDER BY rowid DESC
"""
_REASONS = """
SELECT source, reason, count(*), min(received_at), max(received_at) FROM unreadable
GROUP BY source, reason ORDER BY count(*) DESC, source, reason
"""
_DISCARD = "DELETE FROM unreadable WHERE source = ? AND digest = ?"


class SqliteUnreadable(Part):
    """Fulfils `relay.store.unreadable.UnreadableRequests`."""

    async def newest(self, *, before: int | None, limit: int) -> Sequence[UnreadableRecord]:
        return await self._reader.read(
            lambda db: [UnreadableRecord(*row) for row in db.execute(_NEWEST, (before, limit))]
        )

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        return await self._reader.read(
            lambda db: [_content(row) for row in db.execute(_FIND, (prefix, source, limit))]
        )

    async def reasons(self) -> Sequence[UnreadableReason]:
        return await self._searcher.read(
            lambda db: [UnreadableReason(*row) for row in db.execute(_REASONS)]
        )

    async def discard(self, request: UnreadableRecord) -> None:
        await self._writer.execute(_DISCARD, request.source, bytes.fromhex(request.id))
        self._shared.wiper.start()


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    request = UnreadableRecord(*record)
    damaged = is_damaged(body, bytes.fromhex(request.id))
    return UnreadableContent(request, headers, body, damaged)
