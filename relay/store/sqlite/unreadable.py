"""Unreadable requests in SQLite: queries and removal; `accept` inserts them."""

from collections.abc import Sequence

from relay.store.conditions import Condition, all_of
from relay.store.rows import is_damaged
from relay.store.sqlite.driver import Row
from relay.store.sqlite.shared import Part
from relay.store.unreadable import (
    UnreadableContent,
    UnreadableReason,
    UnreadableRecord,
    UnreadableSelection,
    digests_beginning,
)

_COLUMNS = "rowid, lower(hex(digest)), source, received_at, reason, length(body)"
_NEWEST = f"SELECT {_COLUMNS} FROM unreadable WHERE {{}} ORDER BY rowid DESC LIMIT ?"
_CONTENTS = f"SELECT {_COLUMNS}, headers, body FROM unreadable WHERE {{}} ORDER BY rowid LIMIT ?"
# The index of the primary key answers the inner query without reading bodies.
_FIND = f"""
WITH RECURSIVE sources AS (
    SELECT min(source) AS name FROM unreadable
    UNION ALL
    SELECT (SELECT min(source) FROM unreadable WHERE source > name)
    FROM sources WHERE name IS NOT NULL
)
SELECT {_COLUMNS}, headers, body FROM unreadable WHERE rowid IN (
    SELECT found.rowid FROM sources CROSS JOIN unreadable AS found
    ON found.source = sources.name AND found.digest BETWEEN ?1 AND ?2
    WHERE ?3 IS NULL OR sources.name = ?3 LIMIT ?4
) ORDER BY rowid DESC
"""
_REASONS = """
SELECT source, reason, count(*), min(received_at), max(received_at) FROM unreadable WHERE {}
GROUP BY source, reason ORDER BY count(*) DESC, source, reason
"""
_DISCARD = "DELETE FROM unreadable WHERE source = ? AND digest = ?"


class SqliteUnreadable(Part):
    """Fulfils `relay.store.unreadable.UnreadableRequests`."""

    async def newest(
        self, selection: UnreadableSelection, *, limit: int
    ) -> Sequence[UnreadableRecord]:
        sql, values = all_of(*_of(selection))
        rows = await self._reader.read(
            lambda db: db.execute(_NEWEST.format(sql), (*values, limit)).fetchall()
        )
        return [UnreadableRecord(*row) for row in rows]

    async def contents(
        self, selection: UnreadableSelection, *, after: int, limit: int
    ) -> Sequence[UnreadableContent]:
        sql, values = all_of(*_of(selection), ("rowid > ?", [after]))
        rows = await self._searcher.read(
            lambda db: db.execute(_CONTENTS.format(sql), (*values, limit)).fetchall()
        )
        return [_content(row) for row in rows]

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        return await self._reader.read(
            lambda db: [
                _content(row)
                for row in db.execute(_FIND, (*digests_beginning(prefix), source, limit))
            ]
        )

    async def reasons(self, selection: UnreadableSelection) -> Sequence[UnreadableReason]:
        sql, values = all_of(*_of(selection))
        rows = await self._searcher.read(
            lambda db: db.execute(_REASONS.format(sql), values).fetchall()
        )
        return [UnreadableReason(*row) for row in rows]

    async def discard(self, requests: Sequence[UnreadableRecord]) -> None:
        keys = [(request.source, bytes.fromhex(request.id)) for request in requests]
        await self._writer.transact(lambda db: db.executemany(_DISCARD, keys).rowcount)
        self._shared.wiper.start()


def _of(selection: UnreadableSelection) -> list[Condition]:
    return [
        ("source = ?", [selection.source]),
        ("instr(reason, ?) > 0", [selection.reason]),
        ("received_at >= ?", [selection.since_ms]),
        ("received_at < ?", [selection.until_ms]),
        ("rowid < ?", [selection.before]),
    ]


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    request = UnreadableRecord(*record)
    damaged = is_damaged(body, bytes.fromhex(request.id))
    return UnreadableContent(request, headers, body, damaged)
