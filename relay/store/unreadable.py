"""Verified requests without a usable event: that part of a store's protocol, and its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """One request in a list."""

    seq: int
    """Greater for a later one."""
    id: str
    """SHA-256 of the body, in hex; two sources can be sent the same body."""
    source: str
    received_ms: int
    reason: str
    bytes: int | None
    """Of the body; None once its retention is over, or it was erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableContent:
    """One request whole."""

    request: UnreadableRecord
    headers: bytes | None
    body: bytes | None
    is_damaged: bool
    """Whether the body is another than the one that was received."""


class UnreadableRequests(Protocol):
    """All methods may raise StoreError."""

    async def newest(self, *, before: int | None, limit: int) -> Sequence[UnreadableRecord]:
        """The newest, `before` a `seq` if one is given."""
        ...

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        """Those whose id begins with some hex digits, of one source or of any."""
        ...

    async def discard(self, request: UnreadableRecord) -> None:
        """Remove a request from the store and its files."""
        ...
