"""The configured sinks at work: each with its dispatcher, started, paused, swapped and drained."""

import asyncio
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from relay import sinks
from relay.core.acceptance import Backpressure
from relay.core.backlog_trend import BacklogTrend, Sample
from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery import Delivery, SinkResponse
from relay.core.errors import StoreError, StoreUnavailable, Temporary
from relay.core.event import Event
from relay.core.sink import Enricher, Sink, SinkSettings
from relay.core.sink_status import SinkStatus
from relay.core.standstill import REBUILD_S, Standstill
from relay.core.timeouts import RequestTimeout
from relay.delivery.configured_sink import CLOSE_TIMEOUT_S, ConfiguredSink, Run
from relay.delivery.dispatcher import Dispatcher
from relay.store import Backlog, Store
from relay.store.sink_states import LeftState
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

BEGIN_RETRY_S = 1.0
"""Wait between two tries to begin a sink that was ended in order to begin it again."""

BUILD_LIMIT_S = 10.0
"""Time after which a sink that is held goes on by its old connections: its files may hang."""

SAMPLE_LIMIT_S = 50.0
"""Longest time of a sample: the command that waits for it gives up after 60 s."""


class DispatcherSupervisor:
    """All sinks of one relay; nothing is connected before `start`."""

    def __init__(
        self,
        settings: Iterable[SinkSettings],
        *,
        store: Store,
        metrics: Metrics,
        clock: Clock,
        random: Random,
        backpressure: Backpressure,
        activity: ActivityStream,
        enricher: Enricher | None = None,
    ) -> None:
        self._store = store
        self._ownership = store.ownership
        self._metrics = metrics
        self._clock = clock
        self._dispatcher = partial(
            Dispatcher,
            store=store,
            metrics=metrics,
            clock=clock,
            random=random,
            backpressure=backpressure,
            activity=activity,
            enricher=enricher,
        )
        self._log = log.get()
        settings = tuple(settings)
        self._members = self._new_members(settings, self.build(settings))
        self._leaving: dict[ConfiguredSink, asyncio.Task[None]] = {}
        self._ending: dict[str, Run] = {}
        """Of sinks that another relay takes over, or whose dispatchers are built anew."""
        self._is_draining = False
        self._parts: asyncio.TaskGroup
        self._closing: asyncio.Future[list[None]] | None = None
        self._turn = asyncio.Lock()
        """Held from a look at the paused sinks until that has had its effect.

        Not during a write, which operators' long ones may delay: a sink that begins waits for it.
        """

    def build(self, settings: Iterable[SinkSettings]) -> dict[str, Sink]:
        """Make sinks by name, with no connection; on any thread, because some take a while.

        Raises ValueError and InvalidTemplate.
        """
        return {each.name: sinks.load(each.type).build(each, self._clock) for each in settings}

    def _new_members(
        self, settings: Iterable[SinkSettings], built: Mapping[str, Sink]
    ) -> dict[str, ConfiguredSink]:
        """Give each sink in `built` a dispatcher."""
        chosen = ((each, built[each.name]) for each in settings if each.name in built)
        now_s = self._clock.monotonic()
        return {
            each.name: ConfiguredSink(
                each, sink, self._dispatcher(each, sink), Standstill(now_s), _trend(each)
            )
            for each, sink in chosen
        }

    async def start(self, parts: asyncio.TaskGroup) -> None:
        """Run the dispatchers as tasks of the group; paused sinks stay paused."""
        self._parts = parts
        self._ownership.configure(self._members)
        paused, left = await self.paused(), await self._store.sink_states.left(self._members)
        for member in self._members.values():
            self._restore(member, left.get(member.name))
            self._begin(member, paused, _parked(left))

    async def begin(self, sink: str) -> None:
        """Start to send; harmless for a sink that is gone, or begun already."""
        async with self._turn:
            paused, left = await self.paused(), await self._store.sink_states.left((sink,))
            if (member := self._members.get(sink)) is not None:
                self._restore(member, left.get(sink))
                self._begin(member, paused, _parked(left), self._leaving_as(sink))

    async def end(self, sink: str, *, grace: Duration) -> None:
        """Start nothing more, and return once nothing is in flight and no outcome unsettled.

        Sends that still run after the grace are cancelled.
        """
        await self._end_predecessors(sink, grace)
        member = self._members.get(sink)
        if member is None or member.life is None:
            return
        ending = self._ending[sink] = member.run
        # What the last one learned is out of date by the time the sink comes back.
        member.dispatcher, member.life = self._dispatcher(member.settings, member.sink), None
        try:
            await ending.end(grace)
            await self._store.reclaim(sink)
        finally:
            del self._ending[sink]
            ending.is_over.set()
        if not member.is_rebuilding:
            self._metrics.drop_sink_state(sink)

    async def _end_predecessors(self, sink: str, grace: Duration) -> None:
        """Return once no earlier dispatcher of the sink is at work, each ended within the grace."""
        leaving = [member.run for member in self._leaving if member.name == sink]
        await asyncio.gather(self._end_former(sink, grace), *(run.end(grace) for run in leaving))
        if tasks := self._leaving_as(sink):
            await asyncio.wait(tasks)
        # One that another call has begun to end meanwhile.
        await self._end_former(sink, grace)

    async def _end_former(self, sink: str, grace: Duration) -> None:
        if (ending := self._ending.get(sink)) is not None:
            await ending.end(grace)
            await ending.is_over.wait()

    async def rebuild(self, sink: str) -> None:
        """Dispatch a sink anew, once nothing is in flight and its leases are reclaimed.

        Two dispatchers of one sink could overtake each other. Sends within their time limit end
        normally.
        """
        if (member := self._running(sink)) is None:
            return
        member.is_rebuilding = True
        try:
            await self.end(sink, grace=member.settings.send_timeout())
            await self._begin_in_time(sink)
        finally:
            member.is_rebuilding = False

    async def _begin_in_time(self, sink: str) -> None:
        """Begin as soon as the store can be read: no other relay begins a sink owned here."""
        while True:
            try:
                await self.begin(sink)
            except StoreUnavailable:
                await asyncio.sleep(BEGIN_RETRY_S)
            else:
                return

    def dispatched(self) -> Sequence[ConfiguredSink]:
        """Return the sinks that this relay dispatches."""
        return [member for member in self._members.values() if member.is_dispatched]

    def _begin(
        self,
        member: ConfiguredSink,
        paused: Mapping[str, int],
        parked: Container[str],
        before_it: Sequence[asyncio.Task[None]] = (),
    ) -> None:
        if member.life is not None or member.name in self._ending or self._is_draining:
            return
        if not self._ownership.holds(member.name):
            self._metrics.drop_sink_state(member.name)
            return
        if member.name in paused:
            member.dispatcher.pause(since_ms=paused[member.name])
        if member.name in parked:
            member.dispatcher.distrust()
        if not member.is_rebuilding:
            member.standstill = Standstill(self._clock.monotonic())
            member.trend = _trend(member.settings)
        member.life = self._parts.create_task(member.run_after(before_it))

    async def paused(self) -> Mapping[str, int]:
        """The sinks that an operator has paused, configured now or not, and since when."""
        return await self._store.paused_sinks.all()

    def _restore(self, member: ConfiguredSink, left: LeftState | None) -> None:
        # A pause is an operator's, and kept elsewhere.
        if member.life is None and left is not None and left.state != "paused":
            member.dispatcher.restore(left.state, since_ms=left.since_ms)

    def adopt(
        self,
        settings: Sequence[SinkSettings],
        built: Mapping[str, Sink],
        *,
        paused: Mapping[str, int],
        grace: Duration,
    ) -> None:
        """Run these sinks from now on: those in `built` are new, the others run on unchanged.

        A sink that is replaced or removed starts no further sends, and those in flight finish
        within the grace. Its replacement starts afterwards; the backlog of a removed sink stays in
        the store.
        """
        fresh = self._new_members(settings, built)
        before, self._members = self._members, {}
        for each in settings:
            old = before.pop(each.name, None)
            if old is not None and each.name not in fresh:
                old.settings = each
                self._members[each.name] = old
                continue
            member = self._members[each.name] = fresh[each.name]
            self._metrics.add_sink(each.name)
            held_back, parked = dict(paused), set[str]()
            if old is not None:
                # What replaces it may refuse everything, too, until it has taken an event.
                if old.dispatcher.status().refusals is not None:
                    parked.add(each.name)
                # It may have been resumed, or paused, since `paused` was read.
                if old.life is not None:
                    status = old.dispatcher.status()
                    held_back.pop(each.name, None)
                    if status.state == "paused":
                        held_back[each.name] = status.since_ms or self._clock.now_ms()
                self._retire(old, grace)
            self._begin(member, held_back, parked, self._leaving_as(each.name))
        for old in before.values():
            self._retire(old, grace)
        self._ownership.configure(self._members)

    def _leaving_as(self, name: str) -> list[asyncio.Task[None]]:
        """List the ends of those that had this name before."""
        return [task for each, task in self._leaving.items() if each.name == name]

    def _retire(self, member: ConfiguredSink, grace: Duration) -> None:
        self._leaving[member] = self._parts.create_task(self._leave(member, grace))

    async def _leave(self, member: ConfiguredSink, grace: Duration) -> None:
        await self._end_former(member.name, grace)
        await member.run.end(grace)
        await self._store.reclaim(member.name)
        await member.close()
        del self._leaving[member]
        if member.name not in self._members:
            self._metrics.drop_sink(member.name)
            with suppress(StoreError):
                await self.report_orphans({member.name})

    async def report_orphans(self, names: Container[str] | None = None) -> None:
        """Log backlogs of unconfigured sinks, all or only `names`; raises StoreError."""
        for sink, backlog in (await self._store.backlogs()).items():
            meant = sink not in self._members and (names is None or sink in names)
            if meant and backlog.pending:
                self._log.warning("sink.not_configured", sink=sink, pending=backlog.pending)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def wake(self, name: str) -> None:
        """Say that the sink may have a delivery due; harmless for one that is gone."""
        if (member := self._running(name)) is not None:
            member.dispatcher.wake()

    def offer(self, delivery: Delivery) -> bool:
        """Take a new delivery that is leased; False where the sink has to fetch it in its turn."""
        member = self._running(delivery.sink)
        return member is not None and member.dispatcher.offer(delivery)

    def _running(self, name: str) -> ConfiguredSink | None:
        """Look up a sink that is dispatched here; another one learns from the store as it begins.

        After a wait always anew: a reload may have put another one in its place.
        """
        member = self._members.get(name)
        return None if member is None or member.life is None else member

    def refetch(self) -> None:
        """Have every sink look again at what it has not begun to send."""
        for member in self._members.values():
            member.dispatcher.refetch()

    async def reconsider(self, retried: Collection[str]) -> None:
        """Take over what operators have ordered at another relay; raises StoreError.

        `retried` are the sinks to be tried at once.
        """
        async with self._turn:
            paused = await self.paused()
            for member in self._members.values():
                if member.life is not None:
                    self._follow(member, paused.get(member.name))
                    if member.name in retried:
                        self._retry(member)

    def _follow(self, member: ConfiguredSink, paused_ms: int | None) -> None:
        is_paused = member.dispatcher.status().state == "paused"
        member.dispatcher.refetch()
        if paused_ms is not None and not is_paused:
            member.dispatcher.pause(since_ms=paused_ms)
        elif paused_ms is None and is_paused:
            self._resume(member)

    def _resume(self, member: ConfiguredSink) -> None:
        self._reconnect(member)
        member.dispatcher.resume()

    def _retry(self, member: ConfiguredSink) -> None:
        if member.dispatcher.status().state != "active":
            self._reconnect(member)
        member.dispatcher.probe_now()

    def _reconnect(self, member: ConfiguredSink) -> None:
        """Replace the sink, with its connections, because the old ones may lead to the wrong place.

        An operator who tries a sink again has changed something, perhaps where its name leads.
        """
        if member.replacing is None:
            # Held at once, so that the next try uses the new connections.
            member.dispatcher.hold(is_held=True)
            member.replacing = self._parts.create_task(self._replace(member))

    async def _replace(self, member: ConfiguredSink) -> None:
        try:
            async with asyncio.timeout(BUILD_LIMIT_S):
                built = await asyncio.to_thread(self.build, (member.settings,))
        except Exception as error:  # noqa: BLE001  a file that it names may have gone since
            self._log.warning("sink.not_replaced", sink=member.name, **log.describe(error))
            member.dispatcher.hold(is_held=False)
        else:
            if (ending := self._ending.get(member.name)) is not None:
                # It still sends through the old one.
                await ending.is_over.wait()
            await member.replace_sink(built[member.name])
        finally:
            member.replacing = None

    def statuses(self) -> Mapping[str, SinkStatus]:
        """How each sink is doing, here or at the relay that dispatches it."""
        elsewhere, now_ms = self._ownership.statuses(), self._clock.now_ms()
        return {
            name: each.status(now_ms=now_ms)
            if each.is_dispatched
            else elsewhere.get(name)
            or SinkStatus(name=name, type=each.settings.type, state="standby", is_elsewhere=True)
            for name, each in self._members.items()
        }

    def sample(self, backlogs: Mapping[str, Backlog]) -> None:
        """Add the current backlogs to the trends of the sinks that are dispatched here."""
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for member in self.dispatched():
            each = backlogs.get(member.name, Backlog())
            member.trend.add(
                Sample(now_s, now_ms, each.pending, each.ended, each.retrying),
                is_active=member.dispatcher.status().state == "active"
                and member.standstill.seconds < REBUILD_S,
                give_up_after_s=member.settings.retry.give_up_after.seconds,
            )
            self._metrics.flows.set(member.name, member.trend.flow)

    async def pause(self, name: str) -> None:
        """Hold the sink's deliveries until `resume`, also over a restart; raises KeyError."""
        _ = self._members[name]
        now_ms = self._clock.now_ms()
        await self._store.paused_sinks.pause(name, now_ms=now_ms)
        async with self._turn:
            if (member := self._running(name)) is not None:
                member.dispatcher.pause(since_ms=now_ms)
        self._log.info("sink.paused", sink=name)

    async def resume(self, name: str) -> None:
        """Deliver again; raises KeyError."""
        _ = self._members[name]
        await self._store.paused_sinks.resume(name)
        async with self._turn:
            if (member := self._running(name)) is not None:
                self._resume(member)
        self._log.info("sink.resumed", sink=name)

    async def retry(self, name: str, seq: int | None) -> int:
        """Make pending deliveries, or one of them, due now, and probe; raises KeyError.

        Returns how many deliveries were due later.
        """
        _ = self._members[name]
        now_ms = self._clock.now_ms()
        count = await self._store.bring_forward(
            name, beyond_ms=now_ms, to_ms=now_ms, now_ms=now_ms, only=seq
        )
        await self._store.paused_sinks.retry(name)
        if (member := self._running(name)) is not None:
            self._retry(member)
        self._log.info("sink.retried", sink=name, count=count)
        return count

    async def discard(self, name: str, seq: int) -> bool:
        """Give a pending delivery up; True where it is on its way, and may arrive all the same.

        Also of a sink that is not configured. Raises LookupError where nothing is pending.
        """
        if not await self._store.dead_letters.give_up(seq, name, now_ms=self._clock.now_ms()):
            raise LookupError(seq)
        if (member := self._members.get(name)) is not None:
            member.dispatcher.refetch()
            # The next of its turn may be due now.
            member.dispatcher.wake()
        # Another relay does not tell what it is sending.
        return self._store.is_leased(name, seq) or not self._ownership.holds(name)

    async def check(self, name: str) -> str | None:
        """Reach the destination without an event, as `Sink.check` does; also raises KeyError."""
        return await self._members[name].check()

    async def send_apart(self, name: str, event: Event) -> SinkResponse:
        """Send an event that is not in the store; raises as `Sink.send` does, and KeyError.

        By a sink of its own, so that neither waits for the other's connections or batches.
        """
        settings = self._members[name].settings.for_sample()
        built = await asyncio.to_thread(self.build, (settings,))
        limit = RequestTimeout(min(settings.send_timeout().seconds, SAMPLE_LIMIT_S))
        try:
            async with limit:
                return await built[name].send(event)
        except TimeoutError:
            raise Temporary(limit.reason()) from None
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await built[name].close()

    def render(self, name: str, event: Event) -> Mapping[str, Any]:
        """Return the message that a sink would send, with secrets masked.

        Raises KeyError, and InvalidTemplate or SinkError if its template fails on this event.
        """
        return self._members[name].sink.render(event)

    async def drain(self, grace: Duration) -> None:
        """Start no further sends, and let those in flight finish within the grace."""
        self._is_draining = True
        await asyncio.gather(*(run.dispatcher.drain(grace) for run in self._runs()))
        for run in self._runs():
            run.cancel()

    def cut_off(self) -> None:
        """Start no further sends, and cancel those in flight, so that `drain` waits for none."""
        cut: Counter[str] = Counter()
        for run in self._runs():
            cut[run.dispatcher.name] += run.dispatcher.cut_off()
        counts = [f"{sink} {count}" for sink, count in cut.items() if count]
        self._log.warning("sends.cut_off", counts=counts, count=cut.total(), advice=_ADVICE_CUT_OFF)

    async def close(self) -> None:
        """Close all sinks once, in parallel, each within `CLOSE_TIMEOUT_S`; raises nothing.

        It goes on if the caller is cancelled, and can be waited for again.
        """
        if self._closing is None:
            self._closing = asyncio.gather(*(member.close() for member in self._everyone()))
        await asyncio.shield(self._closing)

    def _everyone(self) -> list[ConfiguredSink]:
        return [*self._members.values(), *self._leaving]

    def _runs(self) -> list[Run]:
        return [*(member.run for member in self._everyone()), *self._ending.values()]


def _trend(settings: SinkSettings) -> BacklogTrend:
    return BacklogTrend(gathers_for_s=settings.gathers_for_s())


def _parked(left: Mapping[str, LeftState]) -> Container[str]:
    return {sink for sink, each in left.items() if each.was_parked}


_ADVICE_CUT_OFF = (
    "a second signal ended the drain; these deliveries are due again after the next start, and "
    "arrive twice where the destination had taken them"
)
