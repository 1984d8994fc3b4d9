"""The facts about a running relay that its verdict rests on, gathered within a limit."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from relay.admin.readiness import Readiness
from relay.admin.services import AdminServices, Reading
from relay.core.downtime import Downtime
from relay.core.errors import StoreError
from relay.core.sink_status import SinkStatus
from relay.store import Backlog
from relay.store.absences import Absence
from relay.store.overview import Overview
from relay.store.quarantine import Rotation
from relay.telemetry.metrics import Disk
from relay.telemetry.traffic import SourceTraffic

READ_S = 2.0
"""For all reads of the store; the verdict itself has to come when the disk hangs."""

ABSENCES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFacts:
    """One sink; what the store could not be asked for is None."""

    name: str
    condition: SinkStatus | None
    """None for a sink that the config does not have, and the store still knows."""
    pending: int | None
    oldest_pending_ms: int | None
    """When the oldest event was received that waits; replayed ones do not count."""
    replaying_since_ms: int | None
    """When the oldest replay began that deliveries to the sink are pending of."""
    dead: int | None
    dead_since_ms: int | None
    dead_reason: str | None
    """Of the newest dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """When the last event of a kind came."""

    kind: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """One source of the config."""

    name: str
    traffic: SourceTraffic
    last_events: Sequence[LastEvent]
    """Of each kind that has come."""
    rotation: Rotation | None
    """None where no rotation was begun, or it has expired."""
    dropped: int
    """Requests that were not kept for the rotation, because of a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The store and its disk."""

    folder: str
    disk: Disk
    unready: Sequence[str]
    """Why no event can be taken; nothing where events can be."""
    unread: str | None
    """Why the store could not be read."""
    alive_ms: int | None
    """The last heartbeat that was written."""
    unclean: bool
    """Whether it was not closed before this start, and has not been read whole since."""
    unreadable: int
    """Verified requests that hold no event."""
    unreadable_ms: int | None
    """When the last of these came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Times are milliseconds since the epoch."""

    version: str
    now_ms: int
    started_ms: int
    draining: bool
    downtime: Downtime | None
    """Before this start; None at the first start of a store."""
    unacknowledged: Sequence[Absence]
    """The oldest absences that lost events and that no operator has acknowledged."""
    unacknowledged_loss_ms: int
    """The time from which events are lost, in all of them."""
    sinks: Sequence[SinkFacts]
    """In the order of the config; then those that it no longer has."""
    sources: Sequence[SourceFacts]
    store: StoreFacts
    last_reload: Reading | None
    """None since the start."""
    refused_reloads: Sequence[Reading]
    """Those whose faults nothing has mended since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the store was asked for; without an error all of it is there."""

    backlogs: Mapping[str, Backlog] | None = None
    overview: Overview | None = None
    rotations: Sequence[Rotation] = ()
    unacknowledged: Sequence[Absence] = ()
    loss_ms: int = 0
    error: str | None = None


async def gather(admin: AdminServices, readiness: Readiness) -> Facts:
    """Gather them; a store that fails or hangs is a fact as well."""
    unready, stored = await asyncio.gather(readiness.problems(), _read(admin))
    now_ms = admin.clock.now_ms()
    return Facts(
        version=version("relay"),
        now_ms=now_ms,
        started_ms=admin.started_ms,
        draining=admin.draining(),
        downtime=admin.downtime(),
        unacknowledged=stored.unacknowledged,
        unacknowledged_loss_ms=stored.loss_ms,
        sinks=_sinks(admin.sinks.conditions(), stored),
        sources=_sources(admin, stored, now_ms=now_ms),
        store=_store(admin, stored, unready),
        last_reload=admin.reloads.last,
        refused_reloads=admin.reloads.refused,
    )


async def _read(admin: AdminServices) -> _Stored:
    try:
        async with asyncio.timeout(READ_S):
            backlogs = await admin.store.backlogs()
            failed = [name for name, each in backlogs.items() if each.dead]
            return _Stored(
                backlogs=backlogs,
                overview=await admin.operations.overview(failed),
                rotations=await admin.rotations.all(),
                unacknowledged=await admin.absences.unacknowledged(limit=ABSENCES_MAX),
                loss_ms=await admin.absences.unacknowledged_loss_ms(),
            )
    except StoreError as error:
        return _Stored(error=str(error))
    except TimeoutError:
        return _Stored(error=f"no answer within {READ_S:g} s")


def _sinks(conditions: Mapping[str, SinkStatus], stored: _Stored) -> list[SinkFacts]:
    backlogs = stored.backlogs or {}
    gone = [name for name, each in sorted(backlogs.items()) if each.pending or each.dead]
    names = [*conditions, *(name for name in gone if name not in conditions)]
    return [_sink(name, conditions.get(name), stored) for name in names]


def _sink(name: str, condition: SinkStatus | None, stored: _Stored) -> SinkFacts:
    backlog = None if stored.backlogs is None else stored.backlogs.get(name, Backlog())
    overview = stored.overview
    dead = None if overview is None else overview.dead.get(name)
    return SinkFacts(
        name=name,
        condition=condition,
        pending=None if backlog is None else backlog.pending,
        oldest_pending_ms=None if backlog is None else backlog.oldest_ms,
        replaying_since_ms=None if overview is None else overview.replaying_ms.get(name),
        dead=None if backlog is None else backlog.dead,
        dead_since_ms=None if dead is None else dead.since_ms,
        dead_reason=None if dead is None else dead.reason,
    )


def _sources(admin: AdminServices, stored: _Stored, *, now_ms: int) -> list[SourceFacts]:
    rotations = {each.source: each for each in stored.rotations}
    return [
        SourceFacts(
            name=name,
            traffic=admin.traffic.of(name, now_ms=now_ms),
            last_events=[
                LastEvent(kind=kind, at_ms=at_ms)
                for kind, at_ms in admin.metrics.last_events_ms(name).items()
            ],
            rotation=rotations.get(name),
            dropped=admin.rotations.dropped(name),
        )
        for name in admin.rotations.sources
    ]


def _store(admin: AdminServices, stored: _Stored, unready: Sequence[str]) -> StoreFacts:
    overview = stored.overview
    return StoreFacts(
        folder=str(admin.folder),
        disk=admin.metrics.disk(),
        unready=unready,
        unread=stored.error,
        alive_ms=None if overview is None else overview.alive_ms,
        unclean=admin.unclean(),
        unreadable=0 if overview is None else overview.unreadable,
        unreadable_ms=None if overview is None else overview.unreadable_ms,
    )
