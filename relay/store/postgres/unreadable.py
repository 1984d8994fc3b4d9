"""Unreadable requests in PostgreSQL: queries and removal; `accept` inserts them."""

from collections.abc import Sequence

from relay.store.conditions import Condition, all_of
from relay.store.postgres.driver import Row
from relay.store.postgres.shared import Part
from relay.store.postgres.text import storable
from relay.store.rows import is_damaged
from relay.store.unreadable import (
    UnreadableContent,
    UnreadableReason,
    UnreadableRecord,
    UnreadableSelection,
    digests_beginning,
)

_COLUMNS = "number, encode(digest, 'hex'), source, received_at, reason, octet_length(body)"
_NEWEST = f"SELECT {_COLUMNS} FROM relay.unreadable WHERE {{}} ORDER BY number DESC LIMIT %s"
_CONTENTS = f"""
SELECT {_COLUMNS}, headers, body FROM relay.unreadable WHERE {{}} ORDER BY number LIMIT %s
"""
_FIND = f"""
WITH RECURSIVE sources AS (
    SELECT min(source) AS name FROM relay.unreadable
    UNION ALL
    SELECT (SELECT min(source) FROM relay.unreadable WHERE source > name)
    FROM sources WHERE name IS NOT NULL
)
SELECT {_COLUMNS}, headers, body FROM relay.unreadable WHERE number = ANY(ARRAY(
    SELECT found.number FROM sources CROSS JOIN LATERAL (
        SELECT number FROM relay.unreadable
        WHERE source = sources.name AND digest BETWEEN %(first)s AND %(last)s LIMIT %(limit)s
    ) AS found
    WHERE %(source)s::text IS NULL OR sources.name = %(source)s LIMIT %(limit)s
)) ORDER BY number DESC
"""
_REASONS = """
SELECT source, reason, count(*), min(received_at), max(received_at) FROM relay.unreadable WHERE {}
GROUP BY source, reason ORDER BY count(*) DESC, source, reason COLLATE "C"
"""
_DISCARD = """
DELETE FROM relay.unreadable AS u USING unnest(%b::text[], %b::bytea[]) AS a (source, digest)
WHERE u.source = a.source COLLATE "C" AND u.digest = a.digest
"""


class PostgresUnreadable(Part):
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
        sql, values = all_of(*_of(selection), ("number > %s", [after]))
        rows = await self._searcher.read(
            lambda db: db.execute(_CONTENTS.format(sql), (*values, limit)).fetchall()
        )
        return [_content(row) for row in rows]

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        first, last = digests_beginning(prefix)
        values = {"first": first, "last": last, "source": source, "limit": limit}
        return await self._reader.read(
            lambda db: [_content(row) for row in db.execute(_FIND, values)]
        )

    async def reasons(self, selection: UnreadableSelection) -> Sequence[UnreadableReason]:
        sql, values = all_of(*_of(selection))
        rows = await self._searcher.read(
            lambda db: db.execute(_REASONS.format(sql), values).fetchall()
        )
        return [UnreadableReason(*row) for row in rows]

    async def discard(self, requests: Sequence[UnreadableRecord]) -> None:
        sources = [request.source for request in requests]
        digests = [bytes.fromhex(request.id) for request in requests]
        await self._shared.background.execute(_DISCARD, sources, digests)
        self._shared.vacuum.start("unreadable")


def _of(selection: UnreadableSelection) -> list[Condition]:
    return [
        ("source = %s", [_storable(selection.source)]),
        ("strpos(reason, %s) > 0", [_storable(selection.reason)]),
        ("received_at >= %s", [selection.since_ms]),
        ("received_at < %s", [selection.until_ms]),
        ("number < %s", [selection.before]),
    ]


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    request = UnreadableRecord(*record)
    damaged = is_damaged(body, bytes.fromhex(request.id))
    return UnreadableContent(request, headers, body, damaged)
