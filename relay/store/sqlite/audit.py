"""The audit log in SQLite, with digests instead of e-mail addresses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from relay.store.audit import Change, ChangeRecord
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.shared import Part

ROWS_MAX = 100_000
"""Number of rows kept: one change per minute for ten weeks."""

DIGEST_DIGITS = 16
"""Length of the digest: a prefix of the one in an erasure's record."""

TEXT_MAX = 500

_WORD = re.compile(r"[^\s\"'<>()\[\]{},;:]+")
_AT = re.compile("@|%40")

_BEGIN = """
INSERT INTO audit (begun_at, operation, target, asked, actor, address, via)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET = "DELETE FROM audit WHERE id <= ?"
_END = "UPDATE audit SET ended_at = ?, status = ?, result = ? WHERE id = ?"
_PLAIN = ("id", "begun_ms", "ended_ms", "operation", "target", "status", "actor", "address", "via")
"""Fields that are stored as they are, in the order of `_NEWEST`."""
_NEWEST = """
SELECT id, begun_at, ended_at, operation, target, status, actor, address, via, asked, result
FROM audit
WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR begun_at >= ?2)
    AND (?3 IS NULL OR begun_at < ?3) AND (?4 IS NULL OR operation = ?4)
ORDER BY id DESC LIMIT ?5
"""


class SqliteAudit(Part):
    """Fulfils `relay.store.audit.Audit`."""

    def veiled(self, change: Change) -> Change:
        return replace(
            change,
            target=self._veil(change.target),
            asked=self._values(change.asked),
            via=self._veil(change.via),
        )

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._digest(value) if name == "email" else self._value(value)
            for name, value in values.items()
        }

    def _value(self, value: object) -> object:
        match value:
            case str():
                return self._veil(value)
            case list() | tuple():
                return [self._value(each) for each in value]
            case dict():
                return self._values(value)
        return value

    def _veil(self, text: str | None) -> str | None:
        if text is None:
            return None
        return _WORD.sub(lambda match: self._veil_word(match[0]), text)[:TEXT_MAX]

    def _veil_word(self, word: str) -> str:
        is_address = _AT.search(word, 1, len(word) - 1)
        return self._digest(word) if is_address else word

    def _digest(self, address: str) -> str:
        return f"person:{self._shared.digests.digest(address).hex()[:DIGEST_DIGITS]}"

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
        return await self._reader.read(
            lambda db: [_record(row) for row in db.execute(_NEWEST, chosen)]
        )


def _record(row: Row) -> ChangeRecord:
    *plain, asked, result = row
    return ChangeRecord(
        **dict(zip(_PLAIN, plain, strict=True)),
        asked=orjson.loads(asked),
        result={} if result is None else orjson.loads(result),
    )
