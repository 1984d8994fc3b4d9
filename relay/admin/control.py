"""What the API is handed of the rest of the relay."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from relay.clock import Clock
from relay.condition import Condition
from relay.config.changes import Changes
from relay.downtime import Downtime
from relay.feed import Feed
from relay.metrics import Metrics
from relay.settings import Secret
from relay.store import Store
from relay.store.desk import Desk, Replay, Selection
from relay.store.people import People


class Sinks(Protocol):
    """The sinks at work."""

    def conditions(self) -> Mapping[str, Condition]: ...

    async def pause(self, name: str) -> None: ...

    async def resume(self, name: str) -> None: ...

    async def check(self, name: str) -> None:
        """Reach the far end without an event; raises SinkError."""
        ...


class Replays(Protocol):
    """Stored events delivered again."""

    async def count(self, selection: Selection) -> Counter[tuple[str, str]]:
        """Deliveries by kind of event and sink."""
        ...

    async def begin(self, selection: Selection) -> Replay: ...

    async def cancel(self, number: int) -> Replay | None: ...


class Reloads(Protocol):
    """The config, read again."""

    async def reload(self) -> Changes:
        """Raises ConfigError, StoreError and Stopping, and then nothing has changed."""
        ...


class Backups(Protocol):
    """Copies of the store."""

    def copied(self) -> AbstractAsyncContextManager[Path]:
        """One that is there until the block ends; raises StoreError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """What the admin app is given; without a token only metrics and health are answered."""

    store: Store
    desk: Desk
    people: People
    backups: Backups
    sinks: Sinks
    replays: Replays
    feed: Feed
    clock: Clock
    metrics: Metrics
    draining: Callable[[], bool]
    started_ms: int
    downtime: Callable[[], Downtime | None]
    """Before this start, once it is known."""
    reloads: Reloads
    token: Callable[[], Secret | None]
    """Asked with every request."""
