"""What operators changed: the protocol of that part of a store, and the records it speaks in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change as it is asked for."""

    operation: str
    """As the API's document names it."""
    target: str | None = None
    """A sink, a source, or the number of a replay or an absence."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """A filter, or other values of the request."""
    actor: str | None = None
    """The label of the token; None where no request asked for it."""
    address: str | None = None
    """Of the peer."""
    via: str | None = None
    """The User-Agent, or what else brought it about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord(Change):
    """One change as it is remembered; times are milliseconds since the epoch."""

    id: int
    begun_ms: int
    ended_ms: int | None
    """None while it is under way, and for one that was cut off."""
    status: int | None
    """As HTTP has it: 200 for done, anything else for refused or failed."""
    result: Mapping[str, Any]
    """Counts."""


class Audit(Protocol):
    """The list of changes; all methods but `veiled` may raise StoreError."""

    def veiled(self, change: Change) -> Change:
        """The change with a keyed digest in the place of each e-mail address, as it is kept."""
        ...

    async def begin(self, change: Change, *, now_ms: int) -> int:
        """Write a veiled change down before it is made; returns its number."""
        ...

    async def end(
        self, number: int, *, status: int, result: Mapping[str, Any], now_ms: int
    ) -> None:
        """Write down its end."""
        ...

    async def newest(
        self, *, before: int | None, since_ms: int | None, limit: int
    ) -> Sequence[ChangeRecord]:
        """The newest, `before` an id if one is given."""
        ...
