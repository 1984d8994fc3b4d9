"""Protocol and records of the page's sessions, and of clients that had the right token lately."""

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import msgspec

from relay.core.minutes import DAY_MS, HOUR_MS, MINUTE_MS

Role = Literal["admin", "viewer"]

SESSIONS_MAX = 200
"""Of each role: viewers' logins must not end the administrators' sessions."""

IDLE_MS = 2 * HOUR_MS
SEEN_EVERY_MS = MINUTE_MS
"""Time within which a session's requests are noted once."""

AGE_MS = 12 * HOUR_MS
"""Longest life of a session, however much it is used."""

KNOWN_MS = 30 * DAY_MS
KNOWN_MAX = 100
"""Marks of known clients of each role: viewers' must not displace the administrators'."""


class Session(msgspec.Struct, frozen=True):
    """One login."""

    role: Role
    address: str | None
    """Network address of the client at the login."""


class KnownClient(msgspec.Struct, frozen=True):
    """A client that had the right token."""

    mark: bytes
    """A fingerprint of its address, or of its browser's identifier."""
    role: Role
    right_ms: int
    """Time of the token."""


class Sessions(Protocol):
    """All sessions, over restarts; all methods but `fingerprint` may raise StoreError.

    An identifier is 32 random bytes, of which only a digest is stored.
    """

    def fingerprint(self, token: str) -> bytes:
        """Return a keyed digest of a token, the same for as long as the store exists.

        It does not depend on the role, so a token that gets another role keeps its sessions.
        """
        ...

    async def open(
        self,
        identifier: bytes,
        *,
        role: Role,
        fingerprint: bytes,
        address: str | None,
        now_ms: int,
    ) -> None:
        """Store a new session, opened with the token of a fingerprint.

        Expired sessions are removed first, and of more than `SESSIONS_MAX` with the same role
        those seen longest ago.
        It also works below the floor of free space, because that is when an operator logs in.
        """
        ...

    async def find(
        self, identifier: bytes, *, fingerprints: Collection[bytes], now_ms: int
    ) -> Session | None:
        """Return a session that is still valid; `fingerprints` are those of the current tokens.

        It ends `IDLE_MS` after its last request, `AGE_MS` after its login, and once the clock was
        set back to over a minute before either, since its age is unknown then.
        """
        ...

    async def seen(self, identifier: bytes, *, now_ms: int) -> None:
        """Note a request, once a minute at most; an ended session stays ended.

        Nothing depends on a single note, so a caller may ignore StoreFull.
        """
        ...

    async def close(self, identifier: bytes) -> None:
        """End a session; one that is unknown is no error."""
        ...

    async def remember(self, clients: Collection[KnownClient], *, now_ms: int) -> None:
        """Store known clients; of each role, the last `KNOWN_MAX` of the last `KNOWN_MS` stay."""
        ...

    async def remembered(self, *, now_ms: int) -> Sequence[KnownClient]:
        """Return the known clients of all relays."""
        ...
