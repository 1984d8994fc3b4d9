"""What the API is handed of the rest of the relay."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from relay.admin.audit import Auditor
from relay.config.changes import Changes
from relay.core.clock import Clock
from relay.core.config_values import Duration, Secret
from relay.core.downtime import Downtime
from relay.core.routing import Route
from relay.core.sink_status import SinkStatus
from relay.store import Store
from relay.store.absences import Absences
from relay.store.audience import Audience
from relay.store.audit import Audit
from relay.store.backup import Backups
from relay.store.integrity import Inspections
from relay.store.operations import Operations
from relay.store.personal_data import PersonalData
from relay.store.quarantine import Rotation
from relay.store.replays import Forecast, Replay
from relay.store.selection import Selection
from relay.store.unreadable import UnreadableRequests
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic


class Sinks(Protocol):
    """The sinks at work."""

    def conditions(self) -> Mapping[str, SinkStatus]: ...

    def refetch(self) -> None:
        """Have every sink look again at what it has not begun to send."""
        ...

    async def pause(self, name: str) -> None: ...

    async def resume(self, name: str) -> None: ...

    async def retry(self, name: str, seq: int | None) -> int:
        """Have pending deliveries come due now, or one, and probe; returns how many were later."""
        ...

    async def discard(self, name: str, seq: int) -> bool:
        """Give a pending delivery up; returns whether it is on its way all the same."""
        ...

    async def check(self, name: str) -> str | None:
        """Reach the far end without an event, as `Sink.check` does; raises SinkError."""
        ...


class Replays(Protocol):
    """Stored events delivered again."""

    async def count(self, selection: Selection) -> Forecast: ...

    async def begin(self, selection: Selection) -> Replay | None:
        """None where there is nothing to deliver."""
        ...

    async def cancel(self, number: int) -> Replay | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One time that the config was read again."""

    at_ms: int
    reason: str
    """Who or what asked for it."""
    taken: bool
    faults: Sequence[str]
    """Keys of what was refused, or another cause."""


class Reloads(Protocol):
    """The config, read again."""

    @property
    def last(self) -> Reading | None:
        """None since the start."""
        ...

    @property
    def refused(self) -> Sequence[Reading]:
        """The refused ones whose faults nothing has mended since, the oldest first."""
        ...

    async def reload(self) -> Changes:
        """Raises ConfigError, StoreError and Stopping, and then nothing has changed."""
        ...


class Rotations(Protocol):
    """Changes of a source's secret during which nothing is to be lost; methods raise StoreError."""

    @property
    def sources(self) -> Sequence[str]:
        """The names of all sources, rotated or not."""
        ...

    async def all(self) -> Sequence[Rotation]:
        """Those that have not expired."""
        ...

    async def state(self, name: str) -> Rotation | None: ...

    async def begin(self, name: str, duration: Duration) -> Rotation: ...

    async def finish(self, name: str) -> Rotation | None:
        """None where there was none to finish."""
        ...

    def dropped(self, name: str) -> int:
        """How many requests were not kept since the relay's start, because of a limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServices:
    """What the admin app is given; without a token only metrics and health are answered."""

    store: Store
    operations: Operations
    absences: Absences
    unreadable: UnreadableRequests
    audit: Audit
    auditor: Auditor
    people: PersonalData
    audience: Audience
    backups: Backups
    inspections: Inspections
    sinks: Sinks
    replays: Replays
    activity: ActivityStream
    clock: Clock
    metrics: Metrics
    draining: Callable[[], bool]
    started_ms: int
    downtime: Callable[[], Downtime | None]
    """Before this start, once it is known."""
    folder: Path
    """Of the store."""
    unclean: Callable[[], bool]
    """Whether the store was left unclean, and has not been found sound since."""
    traffic: Traffic
    reloads: Reloads
    rotations: Rotations
    routes: Callable[[], Sequence[Route]]
    """Of the running config."""
    token: Callable[[], Secret | None]
    """Asked with every request."""
