"""What waits for a source's new secret: the protocol, and the records it speaks in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from relay.core.authentication import UnverifiedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A rotation of one source's secret; it may be over, but has not expired."""

    source: str
    begun_ms: int
    until_ms: int
    """Requests that fit no secret are kept before this."""
    expires_ms: int
    """From then on those that still wait are removed."""
    kept: int
    verified: int
    """Of those kept, the ones that fitted a secret later."""
    duplicates: int
    """Of those verified, the ones whose event was known already."""
    waiting: int
    bytes: int
    """What waits takes so much."""


class Kept(NamedTuple):
    """A request that waits; `number` grows with the order of its being kept."""

    number: int
    request: UnverifiedRequest


class Quarantine(Protocol):
    """Holds what nobody has verified, apart from everything else.

    All methods may raise StoreError. What has returned is on disk.
    """

    async def begin(self, source: str, *, now_ms: int, until_ms: int, expires_ms: int) -> Rotation:
        """Begin a rotation, or prolong the one that goes on; nothing becomes shorter by it."""
        ...

    async def disarm(self, source: str, *, now_ms: int) -> None:
        """Keep nothing more from now on; what was to be kept before is on disk by then."""
        ...

    async def keep(self, request: UnverifiedRequest) -> None:
        """Write a request; raises StoreFull below the store's floor of free space."""
        ...

    async def rotations(self) -> Sequence[Rotation]:
        """All that have not expired."""
        ...

    async def rotation(self, source: str) -> Rotation | None: ...

    async def waiting(self, source: str, *, after: int, limit: int) -> Sequence[Kept]:
        """The next that wait, in order of their numbers."""
        ...

    async def release(self, source: str, numbers: Sequence[int], *, duplicates: int) -> None:
        """Remove what was verified and taken in; so many of it were known already."""
        ...

    async def expire(self, source: str) -> bool:
        """Remove some of what waits, in the end the rotation itself; True if there is more."""
        ...
