"""Protocol and records of a store's inspections."""

from typing import Protocol

import msgspec

from relay.core.delivery import Status
from relay.core.errors import StoreTooNew
from relay.store.migrations import Schema, require_served

DAMAGED_BODY = (
    "the stored body is damaged, so no sink gets it; restore it from a backup or the sender"
)


class StoreContent(msgspec.Struct, frozen=True):
    """Contents of a store, from one snapshot."""

    schema: int
    events: int
    unreadable: int
    deliveries: dict[Status, int]
    sinks: dict[str, dict[Status, int]] = msgspec.field(default_factory=dict)
    """Pending and dead deliveries by sink, without sinks that have none."""


class Inspection(msgspec.Struct, frozen=True):
    """Contents and faults of a store; without readable contents there is a fault."""

    size_bytes: int
    content: StoreContent | None
    faults: tuple[str, ...]


def age(found: Schema, newest: int) -> tuple[str, ...]:
    """Return a fault for a schema that a relay which knows up to `newest` cannot serve."""
    try:
        require_served("its schema", found, newest=newest)
    except StoreTooNew as error:
        return (str(error),)
    return ()


class Inspections(Protocol):
    """Inspections of a whole store."""

    async def inspect(self) -> Inspection:
        """Read the whole store while it is used, and return its faults rather than raise them."""
        ...

    async def close(self) -> None:
        """Cancel the running inspection."""
        ...
