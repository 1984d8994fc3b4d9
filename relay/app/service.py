"""The composition root: builds the relay's parts, starts them, and stops them in order."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

import msgspec

from relay.admin import AdminServices, admin_app
from relay.admin.audit import Auditor
from relay.admin.auth import KnownClients
from relay.admin.readiness import Readiness
from relay.app.adoption import Adoption, show_totals
from relay.app.enrichment import Enrichment
from relay.app.eraser import Eraser
from relay.app.maintenance import Maintenance, OtherRelays
from relay.app.public_side import PublicSide
from relay.app.reload import Reloader
from relay.app.sink_history import SinkHistory
from relay.app.startup import StartupReport
from relay.app.watchdog import HangTimer, Watchdog
from relay.config import Config
from relay.config.changes import Changes, digest
from relay.core.acceptance import AcceptanceHealth, Backpressure
from relay.core.clock import Clock, Instant
from relay.core.config_values import Duration
from relay.core.errors import RelayError, StoreBroken, StoreTooNew
from relay.delivery.replayer import Replayer
from relay.delivery.standstill import StandstillMonitor
from relay.delivery.supervisor import DispatcherSupervisor
from relay.reconciliation.reconciler import Reconciler
from relay.reconciliation.reporter import ReconciliationReporter
from relay.server.connection_limit import ADMIN_BYTES, admin_total, file_limit, limited
from relay.server.listener import Listener
from relay.server.sd_notify import ServiceManager
from relay.server.socket_activation import Side
from relay.store import Backlog, Store, engines
from relay.store.ownership import MAINTENANCE, Introduction
from relay.telemetry import log
from relay.telemetry.ack_times import AckTimes
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic

T = TypeVar("T")

ADMIN_GRACE = Duration.parse("1s")


class ProcessHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the process gives to its relay."""

    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    """A reload resolves `env:` in it."""
    sockets: Mapping[Side, socket.socket] = msgspec.field(default_factory=dict)
    """Inherited sockets, served in place of addresses."""
    manager: ServiceManager | None = None
    hang_timer: HangTimer | None = None


class Service:
    """One relay: built by `open`, served by `run`."""

    def __init__(
        self, config: Config, machine: Clock, store: Store, metrics: Metrics, host: ProcessHooks
    ) -> None:
        """`machine` tells only how far its clock is off the store's, by which all here goes."""
        self._clock = clock = store.clock
        self._store = store
        self._metrics = metrics
        self._log = log.get()
        self._stopping = False
        self._outdated: StoreTooNew | None = None
        self._manager = host.manager or ServiceManager(None, clock=clock)
        self._activity = ActivityStream(clock)
        self._traffic = Traffic()
        self._startup = StartupReport(store=store, metrics=metrics, clock=clock)
        self._ack_times = AckTimes(metrics, clock)
        auditor = Auditor(audit=store.audit, activity=self._activity, clock=clock)
        self._reloader = Reloader(
            config,
            adopt=self._adopt,
            metrics=metrics,
            manager=self._manager,
            activity=self._activity,
            auditor=auditor,
            clock=clock,
            environ=host.environ,
        )
        backpressure = Backpressure()
        self._enrichment = Enrichment(store, metrics=metrics, clock=clock)
        self._enrichment.adopt(config)
        self.supervisor = DispatcherSupervisor(
            config.sinks,
            store=store,
            metrics=metrics,
            clock=clock,
            random=SystemRandom(),
            backpressure=backpressure,
            activity=self._activity,
            enricher=self._enrichment,
        )
        self._others = OtherRelays(
            store=store,
            sources=lambda: [each.name for each in self._reloader.config.sources],
            statuses=self.supervisor.statuses,
            activity=self._activity,
        )
        self._health = AcceptanceHealth(clock)
        self._readiness = Readiness(store, clock, self._health, lambda: self._stopping)
        self._maintenance = Maintenance(
            store,
            metrics=metrics,
            ack_times=self._ack_times,
            counted=self._counted,
            refusal=self._readiness.refusal,
            machine=machine,
        )
        self.replayer = Replayer(
            store,
            config.routes,
            activity=self._activity,
            clock=clock,
            wake=self.supervisor.wake,
            refetch=self.supervisor.refetch,
            has_turn=partial(store.ownership.holds, MAINTENANCE),
        )
        self._eraser = Eraser(
            store.personal_data,
            clock=clock,
            has_turn=partial(store.ownership.holds, MAINTENANCE),
            forget=self._enrichment.forget,
            refetch=self.supervisor.refetch,
            progressed=partial(self._activity.count, "change"),
        )
        self._watchdog = Watchdog(
            self._manager,
            store=store,
            statuses=self.supervisor.statuses,
            problems=self._readiness.problems,
            clock=clock,
            hang_timer=host.hang_timer,
        )
        self._standstills = StandstillMonitor(
            supervisor=self.supervisor, store=store, metrics=metrics, clock=clock
        )
        self._sink_history = SinkHistory(
            store,
            statuses=self.supervisor.statuses,
            downtime=lambda: self._startup.downtime,
            activity=self._activity,
            clock=clock,
        )
        self.reconciler = Reconciler(
            store,
            config.sources,
            config.routes,
            reporter=ReconciliationReporter(metrics=metrics, activity=self._activity, clock=clock),
            clock=clock,
            wake=self.supervisor.wake,
        )
        files = file_limit()
        self._known_clients = KnownClients(store.sessions, clock)
        self._public_side = PublicSide(
            config,
            store,
            supervisor=self.supervisor,
            backpressure=backpressure,
            metrics=metrics,
            activity=self._activity,
            traffic=self._traffic,
            health=self._health,
            clock=clock,
            files=files,
            handed_over=host.sockets.get("public"),
        )
        self.public = self._public_side.listener
        self._rotations = self._public_side.rotations
        self._adoption = Adoption(
            store=store,
            public_side=self._public_side,
            supervisor=self.supervisor,
            replayer=self.replayer,
            reconciler=self.reconciler,
            enrichment=self._enrichment,
            metrics=metrics,
            clock=clock,
            is_stopping=lambda: self._stopping,
        )
        self.admin = self._build_admin(config, auditor, files, host.sockets.get("admin"))

    def _build_admin(
        self, config: Config, auditor: Auditor, files: int, handed_over: socket.socket | None
    ) -> Listener:
        services = AdminServices(
            store=self._store,
            auditor=auditor,
            known_clients=self._known_clients,
            readiness=self._readiness,
            sinks=self.supervisor,
            watched=self._enrichment.of,
            erase=self._eraser.erase,
            replays=self.replayer,
            reconciliations=self.reconciler,
            activity=self._activity,
            clock=self._clock,
            metrics=self._metrics,
            ack_times=self._ack_times,
            reloads=self._reloader,
            rotations=self._rotations,
            intake=self._public_side.intake,
            started=Instant(self._clock),
            downtime=lambda: self._startup.downtime,
            traffic=self._traffic,
            config=lambda: self._reloader.config,
        )
        connections = admin_total(files)
        limit = limited(
            "admin",
            connections,
            memory=ADMIN_BYTES,
            is_trusted=self._public_side.receiver.trusts,
            metrics=self._metrics,
            clock=self._clock,
        )
        return Listener(
            admin_app(services, connections=connections),
            config.server.admin_listen,
            grace=ADMIN_GRACE,
            limit=limit,
            handed_over=handed_over,
        )

    @classmethod
    async def open(
        cls, config: Config, *, clock: Clock, host: ProcessHooks | None = None
    ) -> "Service":
        """Open the store and build everything around it; nothing listens or connects yet.

        `clock` is the machine's, from which the store's differs where relays share one.
        Raises what `engines.open_store` raises.
        """
        host = host or ProcessHooks()
        metrics = Metrics(
            sources=[source.name for source in config.sources],
            sinks=[sink.name for sink in config.sinks],
            revision=host.environ.get("RELAY_REVISION", ""),
        )
        store = await engines.open_store(
            config.store, clock=clock, committed=metrics.store.committed, counted=metrics.counted
        )
        metrics.process.started(store.clock.now_ms())
        metrics.process.opened(*store.version)
        for source in config.sources:
            show_totals(store, metrics, source.name)
        try:
            return cls(config, clock, store, metrics, host)
        except BaseException:
            # Its threads would keep the process alive.
            await store.close()
            raise

    async def run(
        self,
        stop: asyncio.Event,
        *,
        cut_off: asyncio.Event | None = None,
        again: asyncio.Event | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve until `stop` is set, then drain; `ready` is called once both sides listen.

        A drain waits for no sends any longer once `cut_off` is set.
        The config is read again whenever `again` is set.
        Raises ListenFailed, StoreBroken after a disk failure, StoreTooNew after a drain because a
        newer relay has migrated the store beyond this one, and any error that ended a part.
        """
        try:
            async with asyncio.TaskGroup() as parts:
                if await unless(stop, self._prepare()) is None:
                    return
                await self._start(parts, again or asyncio.Event())
                self._tasks.append(parts.create_task(self._stop_when_outdated(stop)))
                ready()
                await stop.wait()
                cutting = self._cut_off_after(cut_off or asyncio.Event())
                self._tasks.append(parts.create_task(cutting))
                await self._drain()
                if self._outdated is not None:
                    raise self._outdated
        except ExceptionGroup as failures:
            error = _first(failures)
            if isinstance(error, StoreBroken):
                self._log.error("store.broken", reason=str(error), advice=_ADVICE)
            elif not isinstance(error, RelayError):
                self._log.error("relay.bug", **log.describe(error))
            raise error from None
        finally:
            await self._close()

    async def _prepare(self) -> bool:
        """Read the store, which may take long; nothing is sent or served yet."""
        self._store.backups.clear()
        await self._startup.report()
        self._adoption.show_secrets(self._reloader.config)
        await self.supervisor.report_orphans()
        await self._maintenance.show_gauges()
        await self._rotations.load()
        await self._known_clients.exchange()
        return True

    async def _start(self, parts: asyncio.TaskGroup, again: asyncio.Event) -> None:
        await self.supervisor.start(parts)
        tasks = (
            *self._maintenance.tasks(),
            self._sink_history.run(),
            self._standstills.run(),
            self.replayer.run(),
            self._eraser.run(),
            self.reconciler.run(),
            self._rotations.run(),
            self._known_clients.run(),
            self._reloader.run(again),
            *self._watchdog.tasks(),
        )
        self._tasks = [parts.create_task(task) for task in tasks]
        await self.admin.start()
        await self.public.start()
        self._introduce(self._reloader.config)
        ownership = self._store.ownership.run(self.supervisor, self._apply_orders)
        self._tasks.append(parts.create_task(ownership))
        for key, listener in (("listen", self.public), ("admin_listen", self.admin)):
            if listener.is_handed_over:
                self._log.info("listener.handed_over", key=f"server.{key}", listen=listener.url)
        self._log.info(
            "relay.ready",
            listen=self.public.url,
            admin_listen=self.admin.url,
            sources=[source.name for source in self._reloader.config.sources],
            sinks=self.supervisor.names,
        )

    async def _stop_when_outdated(self, stop: asyncio.Event) -> None:
        self._outdated = await self._store.ownership.outdated()
        self._log.error("store.too_new", reason=str(self._outdated), advice=_OUTDATED)
        stop.set()

    def _counted(self, backlogs: Mapping[str, Backlog]) -> None:
        self.supervisor.sample(backlogs)
        self._others.notice(backlogs)

    async def _apply_orders(self, retried: Collection[str]) -> None:
        """Take over what operators have ordered at another relay; raises StoreError."""
        self._activity.count("change")
        await self.supervisor.reconsider(retried)
        await self._rotations.load()
        self.replayer.wake()
        self._eraser.wake()

    async def _adopt(self, config: Config, changes: Changes) -> None:
        """As `Adoption.adopt`."""
        await self._adoption.adopt(config, changes)
        self._introduce(config)

    def _introduce(self, config: Config) -> None:
        """Tell the relays that share the store who this one is."""
        me = Introduction(
            name=socket.gethostname(),
            version=self._metrics.process.build.relay,
            revision=self._metrics.process.build.revision,
            address=self.admin.url,
            config=digest(config),
        )
        self._store.ownership.introduce(me)

    async def _drain(self) -> None:
        self._stopping = True
        self._log.info("relay.draining")
        self._manager.stopping()
        # Nothing of a send could be recorded any more: its delivery is sent again.
        outdated = self._outdated is not None
        grace = Duration(0) if outdated else self._reloader.config.server.drain_timeout
        if self.public.is_handed_over:
            await self._hand_back(grace)
        else:
            await self._turn_away(grace)
        for task in self._tasks:
            task.cancel()

    async def _cut_off_after(self, request: asyncio.Event) -> None:
        await request.wait()
        self.supervisor.cut_off()

    async def _turn_away(self, grace: Duration) -> None:
        """Close the public side first: refused connections tell the sender at once.

        Running sends get the rest of the grace.
        """
        started_s = self._clock.monotonic()
        await self._public_side.drain()
        left = Duration(max(0, grace - round((self._clock.monotonic() - started_s) * 1000)))
        await self._hand_over(left)

    async def _hand_back(self, grace: Duration) -> None:
        """Close the public side last: from then on, connections wait for the next relay."""
        await self._hand_over(grace)
        await self.supervisor.close()
        await self._public_side.drain()

    async def _hand_over(self, grace: Duration) -> None:
        await self._sink_history.record_at_stop()
        await self.supervisor.drain(grace)
        await self._store.ownership.leave()

    async def _close(self) -> None:
        """Close every part even if one fails, the store last."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._store.close)
            closing.push_async_callback(self.admin.stop)
            closing.callback(self._activity.close)
            closing.push_async_callback(self._enrichment.close)
            closing.push_async_callback(self.supervisor.close)
            closing.push_async_callback(self.public.stop)
        self._log.info("relay.stopped")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Do the work and return its result; a stop before its end cancels it, and returns None."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
            if working.cancelled() or working.exception() is not None:
                return None
        return working.result()
    finally:
        working.cancel()
        stopping.cancel()


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the root error; a broken store comes before the failures that it caused."""
    broken = failures.subgroup(StoreBroken)
    error: Exception = failures if broken is None else broken
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


_ADVICE = (
    "no event is acknowledged any longer; check the disk and the kernel's log, "
    "then start the relay again: it checks the store"
)
_OUTDATED = (
    "nothing is acknowledged or recorded here any longer; this relay hands its sinks over and ends "
    "with exit code 78"
)
