"""The list of changes in SQLite, without an e-mail address in it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from relay.core.errors import StoreError
from relay.store.audit import Change, ChangeRecord
from relay.store.sqlite.driver import Connection, Row, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, meaning
from relay.store.sqlite.keys import PersonDigests
from relay.store.sqlite.operator_writes import each

KEPT = 100_000
"""Rows; a program that changes something every minute fills them in ten weeks."""

DIGEST_DIGITS = 16
"""The beginning of what a record of an erasure shows as its person."""

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


class _Ending(NamedTuple):
    number: int
    status: int
    result: Mapping[str, Any]
    now_ms: int


class SqliteAudit:
    """Fulfils `relay.store.audit.Audit`; lives as long as the store whose parts it shares."""

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
        return _ADDRESS.sub(lambda found: self._digest(found[0]), text)[:TEXT_MAX]

    def _digest(self, address: str) -> str:
        return f"person:{self._digests.digest(address).hex()[:DIGEST_DIGITS]}"

    async def begin(self, change: Change, *, now_ms: int) -> int:
        return await self._writer.submit(_WRITE_DOWN, (change, now_ms))

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        await self._writer.submit(_COMPLETE, _Ending(number, status, result, now_ms))

    async def newest(
        self, *, before: int | None, since_ms: int | None, limit: int
    ) -> Sequence[ChangeRecord]:
        try:
            return await self._reader.run(
                lambda db: [_record(row) for row in db.execute(_NEWEST, (before, since_ms, limit))]
            )
        except sqlite3.Error as error:
            raise meaning(error) or StoreError(f"the store cannot be read: {error}") from None


def _begin(db: sqlite3.Connection, wanted: tuple[Change, int]) -> int:
    change, now_ms = wanted
    what = (change.operation, change.target, orjson.dumps(change.asked).decode())
    who = (change.actor, change.address, change.via)
    number = db.execute(_BEGIN, (now_ms, *what, *who)).lastrowid or 0
    db.execute(_FORGET, (number - KEPT,))
    return number


def _end(db: sqlite3.Connection, ending: _Ending) -> None:
    result = orjson.dumps(ending.result).decode()
    db.execute(_END, (ending.now_ms, ending.status, result, ending.number))


def _record(row: Row) -> ChangeRecord:
    number, begun_ms, ended_ms, operation, target, asked, status, result, *who = row
    actor, address, via = who
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


_WRITE_DOWN = each(_begin)
_COMPLETE = each(_end)
