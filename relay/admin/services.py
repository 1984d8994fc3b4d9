"""Parts of the relay that the admin API uses."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from relay.admin.audit import Auditor
from relay.admin.known_clients import KnownClients
from relay.admin.readiness import Readiness
from relay.config import Config
from relay.config.changes import Changes
from relay.core.authentication import SourceSettings
from relay.core.clock import Clock, Moment
from relay.core.config_values import Duration
from relay.core.downtime import Downtime
from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Route
from relay.core.sink_status import SinkStatus
from relay.core.watch_history import KeptHistory
from relay.store import Store
from relay.store.absences import Absence
from relay.store.personal_data import ErasureRecord
from relay.store.quarantine import Rotation
from relay.store.reconstructions import NamedFact, RunRecord
from relay.store.replays import Forecast, Progress, Replay, unreported
from relay.store.selection import Selection
from relay.telemetry.ack_times import AckTimes
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic


class Sinks(Protocol):
    """The running sinks."""

    def statuses(self) -> Mapping[str, SinkStatus]: ...

    def refetch(self) -> None:
        """Make every sink fetch again all that it has not started to send."""
        ...

    async def pause(self, name: str) -> None: ...

    async def resume(self, name: str) -> None: ...

    async def retry(self, name: str, seq: int | None) -> int:
        """Make pending deliveries, or one, due now, and probe; return how many were due later."""
        ...

    async def discard(self, name: str, seq: int) -> bool:
        """Discard a pending delivery; return whether it is in flight, and may still arrive."""
        ...

    async def check(self, name: str) -> str | None:
        """Check the destination without sending an event; raises SinkError."""
        ...

    def render(self, name: str, event: Event) -> Mapping[str, Any]:
        """Return the message that a sink would send, with secrets masked; raises SinkError."""
        ...


class Erasures(Protocol):
    """Erasures of personal data, which continue without their caller."""

    async def erase(self, email: str) -> ErasureRecord:
        """Order an erasure, and return it once it has ended, or as far as it is after a while.

        Raises StoreError, and then nothing is ordered.
        """
        ...


class WatchHistories(Protocol):
    """What the video service's API said of people who became leads, kept in memory."""

    def of(self, email: str) -> Sequence[KeptHistory]:
        """Return all of a person."""
        ...


class Replays(Protocol):
    """Stored events delivered again."""

    async def count(self, selection: Selection, *, progress: Progress = unreported) -> Forecast:
        """Forecast a replay; cancelling it is safe."""
        ...

    async def begin(self, selection: Selection, *, counted: int | None = None) -> Replay | None:
        """Start a replay; None if there is nothing to deliver.

        `counted` is the total of a count just made, which saves the time of another.
        """
        ...

    async def cancel(self, number: int) -> Replay | None: ...


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reload of the config."""

    at_ms: int
    reason: str
    """Trigger of the reload."""
    taken: bool
    faults: Sequence[str]
    """Keys with faults, or another cause of the refusal."""


class Reloads(Protocol):
    """Reloads of the config."""

    @property
    def last(self) -> Reading | None:
        """The last reload; None before the first."""
        ...

    @property
    def refused(self) -> Sequence[Reading]:
        """Refused reloads whose faults are not fixed yet, oldest first."""
        ...

    async def reload(self) -> Changes:
        """Reload; raises ConfigError, StoreError and Stopping, which change nothing."""
        ...


class Rotations(Protocol):
    """Rotations of a source's secret without loss; methods raise StoreError."""

    @property
    def sources(self) -> Sequence[str]:
        """Names of all sources, rotating or not."""
        ...

    async def all(self) -> Sequence[Rotation]:
        """Return the rotations that have not expired."""
        ...

    async def state(self, name: str) -> Rotation | None: ...

    async def begin(self, name: str, duration: Duration) -> Rotation: ...

    async def finish(self, name: str) -> Rotation | None:
        """Finish a rotation; None if there is none."""
        ...

    def dropped(self, name: str) -> int:
        """Return the number of requests dropped since the start because of a limit."""
        ...


class Intake(Protocol):
    """Acceptance of requests that were verified before."""

    async def retry(self, request: Unreadable) -> Outcome:
        """Accept the event in a kept request, as of its receipt; `unreadable` if it has none.

        Raises StoreError.
        """
        ...


class RunProgress(Protocol):
    """What a reconciliation is doing."""

    @property
    def doing(self) -> str: ...

    @property
    def done(self) -> int: ...

    @property
    def total(self) -> int:
        """0 if it is not known."""
        ...


class Reconciliations(Protocol):
    """What outages cost, given back from the sender's API."""

    @property
    def sources(self) -> Mapping[str, SourceSettings]:
        """The sources that have an API."""
        ...

    @property
    def unreconciled(self) -> Mapping[str, Sequence[Absence]]:
        """Absences by source that lost events, and that no run has covered."""
        ...

    def progress(self, number: int) -> RunProgress | None:
        """Return what a run is doing; None if it is over."""
        ...

    def words(self, run: RunRecord) -> Sequence[str]:
        """Return a run's report as sentences, without an address."""
        ...

    def named(self, run: RunRecord) -> Sequence[NamedFact]:
        """Return the facts that a run's report names."""
        ...

    async def begin(
        self,
        source: str,
        *,
        since_ms: int | None,
        until_ms: int | None,
        dry_run: bool,
        events: Collection[str] = (),
    ) -> RunRecord:
        """Start a run, of some kinds of events alone; raises NotReconciled and StoreError."""
        ...

    def cancel(self, number: int) -> bool:
        """End a run; False if it is not under way."""
        ...


class AdminServices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the admin app uses."""

    store: Store
    auditor: Auditor
    known_clients: KnownClients
    readiness: Readiness
    sinks: Sinks
    watch_histories: WatchHistories
    erasures: Erasures
    replays: Replays
    reconciliations: Reconciliations
    activity: ActivityStream
    clock: Clock
    metrics: Metrics
    ack_times: AckTimes
    started: Moment
    downtime: Callable[[], Downtime | None]
    """The downtime before this start, once known."""
    traffic: Traffic
    reloads: Reloads
    rotations: Rotations
    intake: Intake
    config: Callable[[], Config]
    """The running config; called for every request, because a reload may change it."""

    @property
    def routes(self) -> Sequence[Route]:
        """Routes of the running config."""
        return self.config().routes
