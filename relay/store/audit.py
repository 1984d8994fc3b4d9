"""Protocol and records of the audit log."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import orjson

ROWS_MAX = 100_000
"""Number of changes kept: one per minute for ten weeks."""


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


def record_of(row: Sequence[Any]) -> ChangeRecord:
    """Make a record from a row: the fields of `_PLAIN`, then `asked` and `result` as JSON."""
    *plain, asked, result = row
    return ChangeRecord(
        **dict(zip(_PLAIN, plain, strict=True)),
        asked=orjson.loads(asked),
        result={} if result is None else orjson.loads(result),
    )


class Audit(Protocol):
    """The audit log; all methods but `pseudonymized` may raise StoreError."""

    def pseudonymized(self, change: Change) -> Change:
        """Replace each e-mail address of a change by its keyed digest."""
        ...

    async def begin(self, change: Change, *, now_ms: int) -> int:
        """Record a pseudonymized change before it is made; return its number."""
        ...

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        """Record the outcome of a change."""
        ...

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
        ...
