"""The audit log: operators' changes, with keyed digests in place of their e-mail addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from relay.core.addresses import ADDRESS, plain
from relay.store.keyed_digests import PersonDigests
from relay.store.repository import Repository, rows
from relay.store.rows import Row
from relay.store.sql import Database, FilteredSql, Sql

ROWS_MAX = 100_000
"""Number of changes kept: one per minute for ten weeks."""

DIGEST_DIGITS = 16
"""Length of an address's digest: a prefix of the one in an erasure's record."""

TEXT_MAX = 500


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One requested change."""

    operation: str
    """Operation id in the API's document."""
    target: str | None = None
    """Sink, source, or number of a replay or an absence."""
    asked: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Filter or other values of the request."""
    actor: str | None = None
    """Label of the token; None for a change without a request."""
    address: str | None = None
    """Network address of the client."""
    via: str | None = None
    """User-Agent, or another trigger."""


class ChangeRecord(Change, frozen=True, kw_only=True):
    """One recorded change; times are milliseconds since the epoch."""

    id: int
    begun_ms: int
    ended_ms: int | None
    """None while it runs, and for an interrupted one."""
    status: int | None
    """HTTP status: 200 for done, anything else for refused or failed."""
    result: Mapping[str, Any]
    """Counts by name."""


_PLAIN = ("id", "begun_ms", "ended_ms", "operation", "target", "status", "actor", "address", "via")
_BEGIN = Sql("""
INSERT INTO main.audit (id, begun_at, operation, target, asked, actor, address, via)
/*postgres OVERRIDING SYSTEM VALUE */
VALUES (:id, :now, :operation, :target, :asked, :actor, :address, :via)
ON CONFLICT (id) DO UPDATE SET begun_at = excluded.begun_at RETURNING id
""")
_FORGET = Sql("DELETE FROM main.audit WHERE id <= :forgotten")
_END = Sql("""
UPDATE main.audit SET ended_at = :now, status = :status, result = :result WHERE id = :id
""")
_NEWEST = FilteredSql(
    """
SELECT id, begun_at, ended_at, operation, target, status, actor, address, via, asked, result
FROM main.audit WHERE {where} ORDER BY id DESC LIMIT :limit
""",
    {
        "before": "id < :before",
        "since": "begun_at >= :since",
        "until": "begun_at < :until",
        "operation": "operation = :operation",
    },
)


class Audit(Repository):
    """The audit log; all methods but `pseudonymized` may raise StoreError."""

    def pseudonymized(self, change: Change) -> Change:
        """Replace each e-mail address of a change by its keyed digest."""
        return _Pseudonyms(self._connections.digests).of_change(change)

    async def begin(self, change: Change, *, now_ms: int) -> int:
        """Record a pseudonymized change before it is made; return its number."""
        values = {
            "id": await self._connections.draw("audit"),
            "now": now_ms,
            "operation": change.operation,
            "target": change.target,
            "asked": orjson.dumps(change.asked).decode(),
            "actor": change.actor,
            "address": change.address,
            "via": change.via,
        }
        return await self._background.transact(lambda db: begin(db, values))

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        """Record the outcome of a change."""
        text = orjson.dumps(result).decode()
        values = {"id": number, "now": now_ms, "status": status, "result": text}
        await self._background.execute(_END, values)

    async def newest(
        self,
        *,
        before: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        limit: int,
    ) -> Sequence[ChangeRecord]:
        """Return the newest changes that match all that is given; `before` is an id."""
        values = {
            "before": before,
            "since": since_ms,
            "until": until_ms,
            "operation": operation,
            "limit": limit,
        }
        return [_record(each) for each in await rows(self._reader, _NEWEST.by(values), values)]


def begin(db: Database, values: Mapping[str, Any]) -> int:
    """Record a change, and forget the oldest one; return its number."""
    ((number,),) = db.execute(_BEGIN, values).fetchall()
    db.execute(_FORGET, {"forgotten": number - ROWS_MAX})
    return int(number)


def _record(row: Row) -> ChangeRecord:
    *others, asked, result = row
    return ChangeRecord(
        **dict(zip(_PLAIN, others, strict=True)),
        asked=orjson.loads(asked),
        result={} if result is None else orjson.loads(result),
    )


class _Pseudonyms:
    """Replaces addresses by the digests of one store."""

    def __init__(self, digests: PersonDigests) -> None:
        self._digests = digests

    def of_change(self, change: Change) -> Change:
        return replace(
            change,
            target=self._text(change.target),
            asked=self._values(change.asked),
            via=self._text(change.via),
        )

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._digest(value) if name == "email" else self._value(value)
            for name, value in values.items()
        }

    def _value(self, value: object) -> object:
        match value:
            case str():
                return self._text(value)
            case list() | tuple():
                return [self._value(each) for each in value]
            case dict():
                return self._values(value)
        return value

    def _text(self, text: str | None) -> str | None:
        if text is None:
            return None
        return ADDRESS.sub(lambda match: self._digest(match[0]), text)[:TEXT_MAX]

    def _digest(self, address: str) -> str:
        address = plain(address)
        return f"person:{self._digests.digest(address).hex()[:DIGEST_DIGITS]}"
