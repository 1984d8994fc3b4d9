"""Background tasks: gauges, heartbeat, retention, audience, the check after an unclean stop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress

import msgspec

from relay.core.clock import Clock, offset_ms
from relay.core.errors import StoreError, StoreFull, StoreUnavailable
from relay.core.sink_status import SinkStatus
from relay.store import Backlog, Store
from relay.telemetry import log
from relay.telemetry.ack_times import SAMPLE_EVERY_S, AckTimes
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

GAUGES_EVERY_S = 1.0
QUIET_GAUGES_EVERY_S = 5.0
"""Longest interval, to which it doubles while nothing changes: each look burdens a database."""
LAG_EVERY_S = 0.1
LAGS_MAX = 600
"""Moments that are counted at most after the loop stood still: a process may have been stopped."""
HEARTBEAT_EVERY_S = 5.0
CLUSTER_EVERY_S = 5.0
STATISTICS_EVERY_S = 30.0
"""In which a busy relay stores rows that take some 0.1 s to count, while it goes on."""
STALL_MS = 60_000
"""Gap between two heartbeats that counts as an absence, whatever its cause."""

RETENTION_EVERY_S = 3600.0
RETENTION_PAUSE_S = 0.05
AUDIENCE_EVERY_S = 10.0
AUDIENCE_PAUSE_S = 0.05
"""Pause between two steps, so that acknowledgements need not wait for the writer."""


class Maintenance:
    """The background tasks of one store; a task that finds the store broken raises."""

    def __init__(
        self,
        store: Store,
        *,
        metrics: Metrics,
        ack_times: AckTimes,
        counted: Callable[[Mapping[str, Backlog]], None],
        refusal: Callable[[], Awaitable[StoreError | None]],
        machine: Clock,
    ) -> None:
        """`counted` is called with the backlogs each time that they were read.

        `refusal` returns why the store refuses events, if it does. `machine` is compared with the
        store's clock.
        """
        self._store = store
        self._refusal = refusal
        self._counted = counted
        self._metrics = metrics
        self._ack_times = ack_times
        self._machine = machine
        self._clock = store.clock
        self._log = log.get()
        self._sampled = log.Sampled(store.clock)
        self._backlogs: Mapping[str, Backlog] | None = None

    def tasks(self) -> tuple[Coroutine[None, None, None], ...]:
        """Return all tasks' coroutines; each runs until it is cancelled."""
        return (
            self._gauges(),
            self._cluster(),
            self._samples(),
            self._statistics(),
            self._loop_lag(),
            self._heartbeat(),
            self._retention(),
            self._audience(),
            self._inspection(),
        )

    async def _gauges(self) -> None:
        wait_s = GAUGES_EVERY_S
        while True:
            await asyncio.sleep(wait_s)
            changed = await self.show_gauges()
            wait_s = GAUGES_EVERY_S if changed else min(2 * wait_s, QUIET_GAUGES_EVERY_S)

    async def show_gauges(self) -> bool:
        """Show how the store and the log are; return whether the store may have changed."""
        self._metrics.process.log_lines_dropped(log.lines_dropped())
        self._metrics.store.set_clock_offset(offset_ms(self._machine, self._clock))
        try:
            backlogs = await self._store.backlogs()
            size_bytes = await self._store.size_bytes()
        except StoreUnavailable as error:
            self._sampled.line("store.unavailable", reason=str(error))
            return True
        for sink, backlog in backlogs.items():
            self._metrics.backlog(sink, backlog.pending, backlog.dead, backlog.oldest_ms)
        self._metrics.store.set_size(size_bytes)
        self._counted(backlogs)
        if (space := self._store.space()) is not None:
            self._metrics.store.set_space(
                space.free_bytes, floor=space.min_free_bytes, log=space.log_bytes
            )
        before, self._backlogs = self._backlogs, backlogs
        return before != backlogs

    async def _cluster(self) -> None:
        """Show the relays that share the store, the same figures at each."""
        while True:
            with suppress(StoreUnavailable):
                cluster = await self._store.ownership.cluster()
                if cluster is None:
                    return
                self._metrics.cluster.set(
                    live=len(cluster.live),
                    away=len(cluster.away),
                    configs=len(cluster.configs),
                    free_sinks=len(cluster.free),
                )
            await asyncio.sleep(CLUSTER_EVERY_S)

    async def _samples(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._ack_times.sample()

    async def _statistics(self) -> None:
        """Count the last hour's events and attempts before anybody asks for them."""
        while True:
            with suppress(StoreUnavailable):
                await self._store.statistics.keep_up()
            await asyncio.sleep(STATISTICS_EVERY_S)

    async def _loop_lag(self) -> None:
        """Measure how late the event loop is for a timer, ten times a second.

        Moments that pass while the loop stands still count too. Otherwise a second of standstill
        would be one measurement instead of ten.
        """
        due_s = self._clock.monotonic() + LAG_EVERY_S
        while True:
            await asyncio.sleep(due_s - self._clock.monotonic())
            late_s = self._clock.monotonic() - due_s
            passed = 1 + int(late_s / LAG_EVERY_S)
            for number in range(min(passed, LAGS_MAX)):
                self._metrics.process.loop_lagged(max(0.0, late_s - number * LAG_EVERY_S))
            due_s += passed * LAG_EVERY_S

    async def _heartbeat(self) -> None:
        """Write heartbeats, which also detect a broken store while there are no requests."""
        failed = False
        while True:
            try:
                await self._beat()
            except StoreUnavailable as error:
                if not failed:
                    advice = _ADVICE_FULL if isinstance(error, StoreFull) else _ADVICE
                    self._log.error("store.unavailable", reason=str(error), advice=advice)
                failed = True
            else:
                if failed:
                    self._log.info("store.available")
                failed = False
            await asyncio.sleep(HEARTBEAT_EVERY_S)

    async def _beat(self) -> None:
        if (refusal := await self._refusal()) is not None:
            # A relay that accepts nothing is away, although a heartbeat could be written.
            raise refusal.with_traceback(None)
        now_ms = self._clock.now_ms()
        stall = await self._store.absences.beat(now_ms=now_ms, cause="stalled", over_ms=STALL_MS)
        if stall is not None:
            seconds = round((stall.to_ms - stall.from_ms) / 1000)
            lost_s = 0 if stall.lacks is None else round(stall.lacks.seconds)
            self._log.warning(
                "relay.stalled", seconds=seconds, lost_s=lost_s, advice=_ADVICE_STALLED
            )
        loss_ms = await self._store.absences.unacknowledged_loss_ms()
        self._metrics.outages.unacknowledged_loss(loss_ms / 1000)

    async def _retention(self) -> None:
        while True:
            more = False
            try:
                more = await self._store.expire(now_ms=self._clock.now_ms())
            except StoreUnavailable as error:
                self._log.warning("retention.stopped", reason=str(error))
            await asyncio.sleep(RETENTION_PAUSE_S if more else RETENTION_EVERY_S)

    async def _audience(self) -> None:
        """Count views and leads from the stored bodies."""
        while True:
            more = False
            try:
                more = await self._store.audience.fill()
            except StoreFull:
                pass  # The heartbeat reports it.
            except StoreUnavailable as error:
                self._sampled.line("audience.stopped", reason=str(error))
            await asyncio.sleep(AUDIENCE_PAUSE_S if more else AUDIENCE_EVERY_S)

    async def _inspection(self) -> None:
        """Check the whole file once after an unclean stop, while the relay works."""
        if not self._store.unclean:
            return
        self._log.warning("store.unclean", path=self._store.location)
        await self._store.inspect()
        self._log.info("store.sound", path=self._store.location)


_ADVICE_STALLED = (
    "no event was accepted for this long: the store was full, hung or refused events, the machine "
    "was suspended, or its clock was set forward; relay absences list shows it"
)
_ADVICE_FULL = "events get 503 until there is free space; free some on the store's disk"
_ADVICE = "events get 503 until the store can be written again"


class OtherRelays(msgspec.Struct, eq=False, kw_only=True):
    """Has open pages follow the other relays of a store, whose work this one sees there only.

    Compares what this relay has not done itself with the last look; without others, nothing.
    """

    store: Store
    sources: Callable[[], Iterable[str]]
    statuses: Callable[[], Mapping[str, SinkStatus]]
    activity: ActivityStream
    _seen: tuple[int, Mapping[str, object]] | None = None

    def notice(self, backlogs: Mapping[str, Backlog]) -> None:
        """Count the changes since the last look; `backlogs` are the current ones."""
        now = self._arrived(), self._elsewhere(backlogs)
        before, self._seen = self._seen or now, now
        if now[0] != before[0]:
            self.activity.count("arrived elsewhere")
        if now[1] != before[1]:
            self.activity.count("settled elsewhere")
            self.activity.count("state elsewhere")

    def _arrived(self) -> int:
        """Return how many events others have accepted, and this relay before its start."""
        totals = (each for source in self.sources() for each in self.store.totals(source))
        return sum(each.events for each in totals) - self.activity.counts.get("accepted", 0)

    def _elsewhere(self, backlogs: Mapping[str, Backlog]) -> Mapping[str, object]:
        return {
            name: (each.state, each.last_delivered_ms, each.last_error_ms, backlogs.get(name))
            for name, each in self.statuses().items()
            if each.is_elsewhere
        }
