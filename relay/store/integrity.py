"""Contents of a store and whether it is sound: that part of the protocol, and its records."""

from dataclasses import dataclass, field
from typing import Protocol

from relay.core.delivery import Status


@dataclass(frozen=True)
class Content:
    """What a store holds; the numbers are those of one moment."""

    schema: int
    events: int
    unreadable: int
    deliveries: dict[Status, int]
    sinks: dict[str, dict[Status, int]] = field(default_factory=dict)
    """The pending and the dead deliveries of each sink that has any."""


@dataclass(frozen=True)
class Inspection:
    """`content` is None where it cannot be read; then there is a fault."""

    size_bytes: int
    content: Content | None
    faults: tuple[str, ...]


class Inspections(Protocol):
    """Full readings of a store."""

    async def inspect(self) -> Inspection:
        """Read the whole store beside its work; a damaged one is no error."""
        ...

    async def close(self) -> None:
        """End a reading that goes on."""
        ...
