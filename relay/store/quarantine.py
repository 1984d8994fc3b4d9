"""Protocol and records of the quarantine: unverified requests kept during a rotation."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from relay.core.authentication import UnverifiedRequest

RotationState = Literal["armed", "over"]
"""`armed` quarantines unverified requests; `over` only keeps those that it has."""


STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits of a step of `expire`, which other writes wait for."""


class Rotation(msgspec.Struct, frozen=True):
    """A rotation of one source's secret that has not expired."""

    source: str
    begun_ms: int
    until_ms: int
    """End of the time in which unverified requests are kept."""
    expires_ms: int
    """Time at which waiting requests are removed."""
    kept: int
    verified: int
    """Kept requests that verified later."""
    duplicates: int
    """Verified requests whose event was known already."""
    waiting: int
    bytes: int
    """Total size of the waiting requests."""

    def state(self, now_ms: int) -> RotationState:
        return "armed" if now_ms < self.until_ms else "over"


class Kept(NamedTuple):
    """A waiting request; `number` increases with each."""

    number: int
    request: UnverifiedRequest


class Quarantine(Protocol):
    """Keeps unverified requests apart from events.

    All methods may raise StoreError. Changes are on disk when they return.
    """

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        """Start a rotation, or extend the running one, whose times are never shortened."""
        ...

    async def disarm(self, source: str, *, now_ms: int) -> None:
        """Keep no further requests; earlier ones are on disk when this returns."""
        ...

    async def keep(self, request: UnverifiedRequest) -> None:
        """Store a request; raises StoreFull below the floor of free space."""
        ...

    async def rotations(self) -> Sequence[Rotation]:
        """Return the rotations that have not expired."""
        ...

    async def rotation(self, source: str) -> Rotation | None: ...

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        """Return the next waiting requests, ordered by number."""
        ...

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        """Remove requests that were verified and accepted, `duplicates` of them known already."""
        ...

    async def expire(self, source: str) -> bool:
        """Remove some waiting requests, and in the end the rotation; True if more are left."""
        ...
