"""The audit log in SQLite, with digests instead of e-mail addresses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from relay.core.errors import StoreError
from relay.store.audit import Change, ChangeRecord
from relay.store.sqlite.driver import Connection, Row, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.keys import PersonDigests
from relay.store.sqlite.operator_writes import for_each

ROWS_MAX = 100_000
"""Number of rows kept: one change per minute for ten weeks."""

DIGEST_DIGITS = 16
"""Length of the digest: a prefix of the one in an erasure's record."""

TEXT_MAX = 500

_WORD = r"[^\s\"'<>()\[\]{},;:]+"
_ADDRESS = re.compile(f"{_WORD}(?:@|%40){_WORD}", re.IGNORECASE)

_BEGIN = """
INSERT INTO audit (begun_at, operation, target, asked, actor, address, via)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET = "DELETE FROM audit WHERE id <= ?"
_END = "UPDATE audit SET ended_at = ?, status = ?, result = ? WHERE id = ?"
_NEWEST = """
SELECT id, begun_at, ended_at, operation, target, asked, status, result, actor, address, via
FROM audit WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR begun_at >= ?2)
ORDER BY id DESC LIMIT ?3
"""


class _Outcome(NamedTuple):
    number: int
    status: int
    result: Mapping[str, Any]
    now_ms: int


class SqliteAudit:
    """Fulfils `relay.store.audit.Audit`; shares the parts of its store."""

    def __init__(self, reader: Connection, writer: GroupCommit, *, digests: PersonDigests) -> None:
        self._reader = reader
        self._writer = writer
        self._digests = digests

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
        return _ADDRESS.sub(lambda match: self._digest(match[0]), text)[:TEXT_MAX]

    def _digest(self, address: str) -> str:
        return f"person:{self._digests.digest(address).hex()[:DIGEST_DIGITS]}"

    async def begin(self, change: Change, *, now_ms: int) -> int:
        return await self._writer.submit(_BEGIN_EACH, (change, now_ms))

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        await self._writer.submit(_END_EACH, _Outcome(number, status, result, now_ms))

    async def newest(
        self, *, before: int | None, since_ms: int | None, limit: int
    ) -> Sequence[ChangeRecord]:
        try:
            return await self._reader.run(
                lambda db: [_record(row) for row in db.execute(_NEWEST, (before, since_ms, limit))]
            )
        except sqlite3.Error as error:
            raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _begin(db: sqlite3.Connection, values: tuple[Change, int]) -> int:
    change, now_ms = values
    request = (change.operation, change.target, orjson.dumps(change.asked).decode())
    client = (change.actor, change.address, change.via)
    number = db.execute(_BEGIN, (now_ms, *request, *client)).lastrowid or 0
    db.execute(_FORGET, (number - ROWS_MAX,))
    return number


def _end(db: sqlite3.Connection, outcome: _Outcome) -> None:
    result = orjson.dumps(outcome.result).decode()
    db.execute(_END, (outcome.now_ms, outcome.status, result, outcome.number))


def _record(row: Row) -> ChangeRecord:
    number, begun_ms, ended_ms, operation, target, asked, status, result, *client = row
    actor, address, via = client
    return ChangeRecord(
        id=number,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        operation=operation,
        target=target,
        asked=orjson.loads(asked),
        status=status,
        result={} if result is None else orjson.loads(result),
        actor=actor,
        address=address,
        via=via,
    )


_BEGIN_EACH = for_each(_begin)
_END_EACH = for_each(_end)
