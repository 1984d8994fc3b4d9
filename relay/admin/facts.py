"""Facts about a running relay, the basis of its verdict, gathered within a time limit."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from relay.admin.services import AdminServices, Reading
from relay.core.api_settings import ApiSettings
from relay.core.delivery_rules import GIVE_UP_S, Downtime
from relay.core.errors import StoreError
from relay.core.sink_status import SinkStatus
from relay.store import Backlog, StoreWarning
from relay.store.absences import Absence
from relay.store.audit import ChangeRecord
from relay.store.overview import DeadLetterSummary, Overview
from relay.store.ownership import Cluster
from relay.store.quarantine import Rotation
from relay.telemetry.metrics.store import Disk
from relay.telemetry.traffic import SourceTraffic

READ_TIMEOUT_S = 2.0
"""Time for all reads of the store: the verdict must not hang with the disk."""

ABSENCES_MAX = 100

ENDPOINT_NOTES = "note_endpoint"
"""The operation that notes in the audit log when a webhook endpoint is registered or removed."""

ENDPOINT_NOTES_MAX = 100

_NO_OVERVIEW = Overview(
    alive_ms=None,
    replaying_ms={},
    dead={},
    unreadable=0,
    unreadable_since_ms=None,
    unreadable_ms=None,
)


class SinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One sink; values that the store could not return are None."""

    name: str
    condition: SinkStatus | None
    """None for a sink that is only in the store, not in the config."""
    pending: int | None
    oldest_pending_ms: int | None
    """Receipt of the oldest pending event; replayed ones do not count."""
    replaying_since_ms: int | None
    """Start of the oldest replay with pending deliveries to the sink."""
    dead: int | None
    dead_since_ms: int | None
    dead_reason: str | None
    """Reason of the last death."""

    def status(self) -> SinkStatus:
        """Return the condition, also of a sink that is not in the config."""
        return self.condition or SinkStatus(name=self.name, type=None, state="not configured")


def total_dead(sinks: Iterable[SinkFacts]) -> int | None:
    """Return the number of all dead letters; None if the store could not be read."""
    counts = [each.dead for each in sinks]
    return None if None in counts else sum(count or 0 for count in counts)


class LastEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the last event of a kind."""

    kind: str
    at_ms: int


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One source of the config."""

    name: str
    traffic: SourceTraffic
    last_events: Sequence[LastEvent]
    """One for each kind received so far."""
    rotation: Rotation | None
    """None if no rotation was started, or it has expired."""
    dropped: int
    """Requests that the rotation dropped because of a limit."""
    unreconciled: Sequence[Absence] = ()
    """Absences that lost events, which its API can be asked for and has not been."""
    reconciles_by_itself: bool = False
    removed_ms: int | None = None
    """Time at which its webhook endpoint was removed, unless events came after it."""


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The store and its disk."""

    location: str
    folder: str | None
    """None if it is not on a disk of this machine."""
    disk: Disk
    clock_offset_s: float
    """How far this host's clock is ahead of the store's, by which the relay goes."""
    unready: Sequence[str]
    """Reasons why no events can be accepted; empty if they can."""
    unready_since_ms: int | None
    """Time of the first refusal since an event was stored; None without one."""
    unread: str | None
    """Why the store could not be read."""
    alive_ms: int | None
    """Time of the last stored heartbeat."""
    unclean: bool
    """Whether it was not closed cleanly, and has not been checked since."""
    warnings: Sequence[StoreWarning]
    """What of the store an operator should change."""
    unreadable: int
    """Number of verified requests without an event."""
    unreadable_since_ms: int | None
    """Time of the first of these."""
    unreadable_ms: int | None
    """Time of the last of these."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts; times are milliseconds since the epoch."""

    version: str
    now_ms: int
    started_ms: int
    draining: bool
    downtime: Downtime | None
    """The downtime before this start; None at the first start of a store."""
    unacknowledged: Sequence[Absence]
    """The oldest absences that lost events and are not acknowledged."""
    unacknowledged_loss_ms: int
    """Total time whose events are lost, over all of these absences."""
    sinks: Sequence[SinkFacts]
    """Configured sinks in their order, then removed ones."""
    sources: Sequence[SourceFacts]
    store: StoreFacts
    cluster: Cluster | None
    """The relays that share the store; None where only one can hold it, or it cannot be read."""
    last_reload: Reading | None
    """None before the first reload."""
    refused_reloads: Sequence[Reading]
    """Refused reloads whose faults are not fixed yet."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Values read from the store; defaults if there is an error."""

    backlogs: Mapping[str, Backlog] | None = None
    overview: Overview = _NO_OVERVIEW
    rotations: Sequence[Rotation] = ()
    unacknowledged: Sequence[Absence] = ()
    loss_ms: int = 0
    endpoints: Sequence[ChangeRecord] = ()
    cluster: Cluster | None = None
    error: str | None = None


async def gather(admin: AdminServices) -> Facts:
    """Gather all facts; a store that fails or hangs is one of them."""
    unready, stored = await asyncio.gather(admin.readiness.problems(), _read(admin))
    now_ms = admin.clock.now_ms()
    return Facts(
        version=admin.metrics.process.build.relay,
        now_ms=now_ms,
        started_ms=admin.started.ms,
        draining=admin.readiness.draining(),
        downtime=admin.downtime(),
        unacknowledged=stored.unacknowledged,
        unacknowledged_loss_ms=stored.loss_ms,
        sinks=_sinks(admin.sinks.statuses(), stored),
        sources=_sources(admin, stored, now_ms=now_ms),
        store=_store(admin, stored, unready),
        cluster=stored.cluster,
        last_reload=admin.reloads.last,
        refused_reloads=admin.reloads.refused,
    )


async def _read(admin: AdminServices) -> _Stored:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            backlogs = await admin.store.backlogs()
            with_dead = [name for name, backlog in backlogs.items() if backlog.dead]
            return _Stored(
                backlogs=backlogs,
                overview=await admin.store.overview(with_dead),
                rotations=await admin.store.quarantine.rotations(),
                unacknowledged=await admin.store.absences.unacknowledged(limit=ABSENCES_MAX),
                loss_ms=await admin.store.absences.unacknowledged_loss_ms(),
                cluster=await admin.store.ownership.cluster(),
                endpoints=await admin.store.audit.newest(
                    operation=ENDPOINT_NOTES, limit=ENDPOINT_NOTES_MAX
                ),
            )
    except StoreError as error:
        return _Stored(error=str(error))
    except TimeoutError:
        return _Stored(error=f"no answer within {READ_TIMEOUT_S:g} s")


def _sinks(statuses: Mapping[str, SinkStatus], stored: _Stored) -> list[SinkFacts]:
    backlogs = stored.backlogs or {}
    in_store = [name for name, each in sorted(backlogs.items()) if each.pending or each.dead]
    names = [*statuses, *(name for name in in_store if name not in statuses)]
    return [_sink(name, statuses.get(name), stored) for name in names]


def _sink(name: str, status: SinkStatus | None, stored: _Stored) -> SinkFacts:
    backlog = None if stored.backlogs is None else stored.backlogs.get(name, Backlog())
    dead = stored.overview.dead.get(name, DeadLetterSummary(since_ms=None, reason=None))
    return SinkFacts(
        name=name,
        condition=status,
        pending=None if backlog is None else backlog.pending,
        oldest_pending_ms=None if backlog is None else backlog.oldest_ms,
        replaying_since_ms=stored.overview.replaying_ms.get(name),
        dead=None if backlog is None else backlog.dead,
        dead_since_ms=dead.since_ms,
        dead_reason=dead.reason,
    )


def without_backlog(name: str) -> SinkFacts:
    """Return the facts about a sink that is not in the config, and has nothing to deliver."""
    return _sink(name, None, _Stored(backlogs={}))


def _sources(admin: AdminServices, stored: _Stored, *, now_ms: int) -> list[SourceFacts]:
    rotations = {each.source: each for each in stored.rotations}
    apis = admin.reconciliations.sources
    by_itself = {name for name, source in apis.items() if source.reconcile == "auto"}
    sources = [
        SourceFacts(
            name=name,
            traffic=admin.traffic.of(name, now_ms=now_ms),
            last_events=[
                LastEvent(kind=kind, at_ms=at_ms)
                for kind, at_ms in admin.metrics.last_events_ms(name).items()
            ],
            rotation=rotations.get(name),
            dropped=admin.rotations.dropped(name),
            unreconciled=admin.reconciliations.unreconciled.get(name, ()),
            reconciles_by_itself=name in by_itself,
        )
        for name in admin.sources
    ]
    settings = {source.name: source.api for source in admin.config().sources}
    return [
        replace(each, removed_ms=_removed_ms(each, settings.get(each.name), stored))
        for each in sources
    ]


def _removed_ms(source: SourceFacts, api: ApiSettings | None, stored: _Stored) -> int | None:
    """Return when the endpoint was removed, unless it was replaced, or events came after it."""
    notes = (each for each in stored.endpoints if each.target == source.name)
    note = next(notes, None)
    if note is None or note.asked.get("change") != "removed":
        return None
    endpoint = None if api is None else api.endpoint
    if endpoint is not None and endpoint != note.asked.get("endpoint"):
        return None
    # The service may still retry what it sent before.
    settled_ms = note.begun_ms + (round(GIVE_UP_S * 1000) if api is None else api.give_up_after)
    heard_ms = (source.traffic.verified_ms, *(each.at_ms for each in source.last_events))
    has_come = any(at_ms is not None and at_ms > settled_ms for at_ms in heard_ms)
    return None if has_come else note.begun_ms


def _store(admin: AdminServices, stored: _Stored, unready: Sequence[str]) -> StoreFacts:
    return StoreFacts(
        location=admin.store.location,
        folder=admin.store.folder,
        disk=admin.metrics.store.disk(),
        clock_offset_s=admin.metrics.store.clock_offset_s(),
        unready=unready,
        unready_since_ms=admin.readiness.since_ms,
        unread=stored.error,
        alive_ms=stored.overview.alive_ms,
        unclean=admin.store.unclean,
        warnings=[each for each in admin.store.warnings() if each.needs_action],
        unreadable=stored.overview.unreadable,
        unreadable_since_ms=stored.overview.unreadable_since_ms,
        unreadable_ms=stored.overview.unreadable_ms,
    )
