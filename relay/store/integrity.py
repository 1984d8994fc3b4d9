"""Inspections of a whole store, which its engine reads in its own way."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

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


class Inspections:
    """Inspects one store; concurrent callers share an inspection."""

    def __init__(self, inspect: Callable[[], Coroutine[Any, Any, Inspection]]) -> None:
        """`inspect` reads the whole store while it is used; it returns faults, and raises none."""
        self._inspect = inspect
        self._running: asyncio.Task[Inspection] | None = None

    async def inspect(self) -> Inspection:
        """Start or join an inspection; cancelling one caller does not cancel it for the others."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._inspect())
        return await asyncio.shield(self._running)

    async def close(self) -> None:
        """Cancel the running inspection."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
