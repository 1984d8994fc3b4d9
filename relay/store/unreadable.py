"""Unreadable requests: verified, but without a usable event; `accept` stores them."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from relay.store.repository import Repository, rows
from relay.store.rows import Row, is_damaged
from relay.store.sql import Database, FilteredSql, Sql

_DIGITS = 64
"""Of a SHA-256 in hex."""


class UnreadableRecord(msgspec.Struct, frozen=True):
    """One request in a list."""

    seq: int
    """Increases with each request."""
    id: str
    """SHA-256 of the body, in hex; unique only within a source."""
    source: str
    received_ms: int
    reason: str
    bytes: int | None
    """Size of the body; None once its retention is over, or it was erased."""


class UnreadableContent(msgspec.Struct, frozen=True):
    """One request with its content."""

    request: UnreadableRecord
    headers: bytes | None
    body: bytes | None
    is_damaged: bool
    """Whether the stored body differs from the received one."""


class UnreadableReason(msgspec.Struct, frozen=True):
    """A source's unreadable requests with one reason; times are their receipts."""

    source: str
    reason: str
    count: int
    first_ms: int
    last_ms: int


class UnreadableSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the requests that match every given field."""

    source: str | None = None
    reason: str | None = None
    """A part of the reason."""
    since_ms: int | None = None
    until_ms: int | None = None
    before: int | None = None
    """Only requests with a smaller `seq`."""


_COLUMNS = "rowid, digest, source, received_at, reason, length(body)"
_CONDITIONS = {
    "source": "source = :source",
    "reason": "instr(reason, :reason) > 0",
    "since_ms": "received_at >= :since_ms",
    "until_ms": "received_at < :until_ms",
    "before": "rowid < :before",
}
_NEWEST = FilteredSql(
    f"SELECT {_COLUMNS} FROM main.unreadable WHERE {{where}} ORDER BY rowid DESC LIMIT :limit",
    _CONDITIONS,
)
_CONTENTS = FilteredSql(
    f"""
SELECT {_COLUMNS}, headers, body FROM main.unreadable
WHERE rowid > :after AND {{where}} ORDER BY rowid LIMIT :limit
""",
    _CONDITIONS,
)
_REASONS = FilteredSql(
    """
SELECT source, reason, count(*), min(received_at), max(received_at) FROM main.unreadable
WHERE {where}
GROUP BY source, reason ORDER BY count(*) DESC, source, reason COLLATE BINARY
""",
    _CONDITIONS,
)
# Seeks from one source to the next in the index of the primary key.
_SOURCES = Sql("""
WITH RECURSIVE sources AS (
    SELECT min(source) AS name FROM main.unreadable
    UNION ALL
    SELECT (SELECT min(source) FROM main.unreadable WHERE source > name)
    FROM sources WHERE name IS NOT NULL
)
SELECT name FROM sources WHERE name IS NOT NULL
""")
_FIND = Sql(f"""
SELECT {_COLUMNS}, headers, body FROM main.unreadable
WHERE source = :source AND digest BETWEEN :first AND :last ORDER BY digest LIMIT :limit
""")
_DISCARD = Sql("DELETE FROM main.unreadable WHERE source = :source AND digest = :digest")


class UnreadableRequests(Repository):
    """Stored unreadable requests; all methods may raise StoreError."""

    async def newest(
        self, selection: UnreadableSelection, *, limit: int
    ) -> Sequence[UnreadableRecord]:
        """Return the newest requests of a selection."""
        values = {**asdict(selection), "limit": limit}
        return [_record(each) for each in await rows(self._reader, _NEWEST.by(values), values)]

    async def contents(
        self, selection: UnreadableSelection, *, after: int, limit: int
    ) -> Sequence[UnreadableContent]:
        """Return the oldest requests of a selection whose `seq` is larger."""
        values = {**asdict(selection), "after": after, "limit": limit}
        return [_content(each) for each in await rows(self._searcher, _CONTENTS.by(values), values)]

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        """Return the requests whose id begins with some hex digits, of one source or of any.

        It seeks in the primary key, once for each source.
        """
        values = {
            "first": bytes.fromhex(prefix.ljust(_DIGITS, "0")),
            "last": bytes.fromhex(prefix.ljust(_DIGITS, "f")),
            "limit": limit,
        }

        def find(db: Database) -> list[Row]:
            sources = [(source,)] if source is not None else db.execute(_SOURCES, {}).fetchall()
            return [
                found
                for (name,) in sources
                for found in db.execute(_FIND, {**values, "source": name}).fetchall()
            ]

        found = sorted(await self._reader.read(find), reverse=True)
        return [_content(each) for each in found[:limit]]

    async def reasons(self, selection: UnreadableSelection) -> Sequence[UnreadableReason]:
        """Count the requests by source and reason, highest count first, by a full scan."""
        values = asdict(selection)
        return [
            UnreadableReason(*each)
            for each in await rows(self._searcher, _REASONS.by(values), values)
        ]

    async def discard(self, requests: Sequence[UnreadableRecord]) -> None:
        """Remove requests from the store and its files."""
        keys = sorted((request.source, bytes.fromhex(request.id)) for request in requests)

        def discard(db: Database) -> None:
            for source, digest in keys:
                db.execute(_DISCARD, {"source": source, "digest": digest})

        await self._background.transact(discard)
        self._connections.overwrite("unreadable")


def _record(row: Row) -> UnreadableRecord:
    seq, digest, *others = row
    return UnreadableRecord(seq, digest.hex(), *others)


def _content(row: Row) -> UnreadableContent:
    *record, headers, body = row
    return UnreadableContent(_record(tuple(record)), headers, body, is_damaged(body, record[1]))
