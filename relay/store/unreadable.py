"""Protocol and records of unreadable requests: verified, but without a usable event."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

_DIGITS = 64
"""Of a SHA-256 in hex."""


def digests_beginning(prefix: str) -> tuple[bytes, bytes]:
    """Return the first and the last digest whose hex digits begin so, for a seek in an index."""
    return bytes.fromhex(prefix.ljust(_DIGITS, "0")), bytes.fromhex(prefix.ljust(_DIGITS, "f"))


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


class UnreadableRequests(Protocol):
    """Stored unreadable requests; all methods may raise StoreError."""

    async def newest(
        self, selection: UnreadableSelection, *, limit: int
    ) -> Sequence[UnreadableRecord]:
        """Return the newest requests of a selection."""
        ...

    async def contents(
        self, selection: UnreadableSelection, *, after: int, limit: int
    ) -> Sequence[UnreadableContent]:
        """Return the oldest requests of a selection whose `seq` is larger."""
        ...

    async def find(
        self, prefix: str, *, source: str | None, limit: int
    ) -> Sequence[UnreadableContent]:
        """Return the requests whose id begins with some hex digits, of one source or of any.

        It seeks in the primary key, once for each source.
        """
        ...

    async def reasons(self, selection: UnreadableSelection) -> Sequence[UnreadableReason]:
        """Count the requests by source and reason, highest count first, by a full scan."""
        ...

    async def discard(self, requests: Sequence[UnreadableRecord]) -> None:
        """Remove requests from the store and its files."""
        ...
