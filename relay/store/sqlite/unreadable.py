"""Unreadable requests in SQLite: queries and removal; `accept` inserts them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from relay.core.errors import StoreError
from relay.store.sqlite.digests import is_damaged
from relay.store.sqlite.driver import Connection, Row, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.operator_writes import for_each
from relay.store.unreadable import UnreadableContent, UnreadableRecord

T = TypeVar("T")

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
_DISCARD = "DELETE FROM unreadable WHERE source = ? AND digest = ?"


class SqliteUnreadable:
    """Fulfils `relay.store.unreadable.UnreadableRequests`; shares the parts of its store."""

    def __init__(
        self, reader: Connection, writer: GroupCommit, *, wipe: Callable[[], object]
    ) -> None:
        """`wipe` starts wiping removed data from the files."""
        self._reader = reader
        self._writer = writer
        self._wipe = wipe

    async def newest(self, *, before: int | None, limit: int) -> Sequence[UnreadableRecord]:
        return await self._read(
            lambda db: [_record(row) for row in db.execute(_NEWEST, (before, limit))]
        )

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        return await self._read(
            lambda db: [_content(row) for row in db.execute(_FIND, (prefix, source, limit))]
        )

    async def discard(self, request: UnreadableRecord) -> None:
        await self._writer.submit(_REMOVE, (request.source, bytes.fromhex(request.id)))
        self._wipe()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _discard(db: sqlite3.Connection, key: tuple[str, bytes]) -> None:
    db.execute(_DISCARD, key)


def _record(row: Row) -> UnreadableRecord:
    names = UnreadableRecord.__dataclass_fields__
    return UnreadableRecord(**dict(zip(names, row, strict=True)))


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    request = _record(tuple(record))
    damaged = is_damaged(body, bytes.fromhex(request.id))
    return UnreadableContent(request=request, headers=headers, body=body, is_damaged=damaged)


_REMOVE = for_each(_discard)
