"""Parts of the relay that the admin API uses."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from relay.admin.audit import Auditor
from relay.admin.auth import KnownClients
from relay.admin.readiness import Readiness
from relay.config import Config
from relay.config.changes import Changes
from relay.core.clock import Clock, Instant
from relay.core.delivery_rules import Downtime
from relay.core.routing import Route
from relay.core.watch_history import KeptHistory
from relay.delivery.replayer import Replayer
from relay.delivery.supervisor import DispatcherSupervisor
from relay.receiver.intake import Intake
from relay.receiver.secret_rotation import SecretRotations
from relay.reconciliation.reconciler import Reconciler
from relay.store import Store
from relay.store.erasures import ErasureRecord
from relay.telemetry.ack_times import AckTimes
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic


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


class AdminServices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the admin app uses."""

    store: Store
    auditor: Auditor
    known_clients: KnownClients
    readiness: Readiness
    sinks: DispatcherSupervisor
    watched: Callable[[str], Sequence[KeptHistory]]
    """Returns what the video service's API said that a person had watched, as far as it is kept."""
    erase: Callable[[str], Awaitable[ErasureRecord]]
    """Orders an erasure, and returns it once it has ended, or as far as it is after a while.

    Raises StoreError, and then nothing is ordered.
    """
    replays: Replayer
    reconciliations: Reconciler
    activity: ActivityStream
    clock: Clock
    metrics: Metrics
    ack_times: AckTimes
    started: Instant
    downtime: Callable[[], Downtime | None]
    """The downtime before this start, once known."""
    traffic: Traffic
    reloads: Reloads
    rotations: SecretRotations
    intake: Intake
    config: Callable[[], Config]
    """The running config; called for every request, because a reload may change it."""

    @property
    def sources(self) -> Sequence[str]:
        """Names of the running config's sources."""
        return [each.name for each in self.config().sources]

    @property
    def routes(self) -> Sequence[Route]:
        """Routes of the running config."""
        return self.config().routes
