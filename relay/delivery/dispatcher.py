"""Dispatcher of one sink: leases due deliveries, sends them, and settles their outcomes."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from random import Random

from relay.core.acceptance import Backpressure
from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery import Delivery
from relay.core.delivery_credit import CreditAccount
from relay.core.event import Event
from relay.core.retry import RefusalStreak
from relay.core.sink import Enricher, Sink, SinkSettings
from relay.core.sink_status import SinkStatus, State, WaitReason
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import (
    AttemptResult,
    FinishedAttempt,
    attempt,
    decide_batch,
    judge_batch,
    send_function,
)
from relay.delivery.circuit_breaker import CircuitBreaker, ConcurrencyLimit, Ticket, Wait
from relay.delivery.enrichment import BatchEnrichment
from relay.delivery.prefetch import Fetcher
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import SettlementWriter
from relay.store import Store
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

POLL_INTERVAL_S = 30.0
"""Longest wait between two fetches, so that due times recover after a clock was set back."""

BACKPRESSURE_POLL_S = 0.1

OWNER_POLL_S = 0.1
"""Time between two looks whether this relay is trusted with the sink again, as after a pause."""

FLUSH_MIN_S = 1.0
"""Minimum time for writing outcomes at a drain, even if its sends took the whole grace."""


_Start = tuple[list[Delivery], Ticket]
"""A batch that starts, and the breaker's ticket for it."""


class Dispatcher:
    """Sends one sink's deliveries until `drain`; `wake` announces new ones."""

    def __init__(
        self,
        settings: SinkSettings,
        sink: Sink,
        *,
        store: Store,
        metrics: Metrics,
        clock: Clock,
        random: Random,
        backpressure: Backpressure,
        activity: ActivityStream,
        enricher: Enricher | None = None,
    ) -> None:
        """While `backpressure` is high, sends need its credit; where none is earned, one runs.

        `enricher` is asked for a sink with `enrich`; without one, nothing is enriched.
        """
        self.name = settings.name
        self._settings = settings
        self._send = send_function(sink)
        self._enrichment = None
        if settings.enrich and enricher is not None:
            self._enrichment = BatchEnrichment(settings, enricher)
        self._store = store
        self._may_send = partial(store.ownership.may_send, settings.name)
        self._clock = clock
        self._random = random
        self._backpressure = backpressure
        self._reporter = DeliveryReporter(settings, metrics=metrics, clock=clock, activity=activity)
        self._breaker = CircuitBreaker(settings.retry, settings.pace(), random=random)
        self._refusals = RefusalStreak()
        self._wakeup = asyncio.Event()
        self._credit = CreditAccount(notify=self._wakeup.set)
        self._slots: set[asyncio.Task[None]] = set()
        self._concurrency = ConcurrencyLimit(settings.slots(), settings.batch())
        self._settlement_writer = SettlementWriter(
            store=store,
            clock=clock,
            reporter=self._reporter,
            on_settled=self._on_settled,
            gathered_max=self._concurrency.unsettled_max // 2,
        )
        self._fetcher = Fetcher(
            settings,
            store=store,
            clock=clock,
            reporter=self._reporter,
            notify=self._wakeup.set,
            dead_letter=self._settlement_writer.dead_letter,
        )
        self._gap_timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None
        """That of `run`, until it drains."""
        self._is_starting = False
        self._draining = False
        self._is_resting = False
        """Whether `run` waits only until a fetch is due."""
        self._awaits_credit = False
        """Whether `run` lacks nothing but credit, which wakes it."""
        self._deadlines = Deadlines(clock)
        self._is_held = False
        """Whether nothing starts, because the sink is being replaced."""
        self.last_start_s = -math.inf
        """Time of the last start of a send."""

    def wake(self) -> None:
        """Report that a delivery may be due; cheap when called often."""
        self._fetcher.wake()

    def offer(self, delivery: Delivery) -> bool:
        """Take a new delivery that is leased already; False where it has to be fetched in its turn.

        It is one that `wake` would announce.
        """
        # Room first: under load there is mostly none, and the breaker costs more to ask.
        if self._group is None or not self._fetcher.has_room():
            return False
        if self._breaker.state != "active" or min(self._breaker_wait()) > 0:
            return False
        self._fetcher.take(delivery)
        if not self._is_starting:
            self._is_starting = True
            # Later, so that the events of one commit can share a batch.
            self._deadlines.loop.call_soon(self._start_taken)
        return True

    def _start_taken(self) -> None:
        """Start deliveries without a turn of `run`, whose timeout costs as much as a send's."""
        self._is_starting = False
        if self._is_resting and self._group is not None:
            self._start_all(self._group)
        if not self._is_resting:
            # `run` still waits for the next due delivery, which may be far off.
            self._wakeup.set()

    async def run(self) -> None:
        """Send due deliveries until drained; raises StoreBroken."""
        self._reporter.state(self._breaker.state)
        async with asyncio.TaskGroup() as group:
            self._group = None if self._draining else group
            while not self._draining:
                # Cleared before fetching, so that a wakeup during the fetch is not lost.
                self._wakeup.clear()
                self._fetcher.check_clock()
                self._prefetch(group)
                wait_s = self._start_all(group)
                await self._wait(wait_s)

    def restore(self, state: State, *, since_ms: int) -> None:
        """Begin in the state in which the sink was left, by this relay or another one."""
        self._breaker.restore(state)
        self._reporter.restore(state, since_ms=since_ms)

    def pause(self, *, since_ms: int | None = None) -> None:
        """Start nothing until `resume`; sends in flight end normally.

        `since_ms` is passed for a sink that was paused before this relay, or this config, started.
        """
        self._breaker.pause()
        self._fetcher.release()
        self._reporter.state(self._breaker.state, since_ms=since_ms)

    def resume(self) -> None:
        """Continue after `pause`, in the state that the sink was in."""
        self._breaker.resume()
        self._fetcher.fetch_now()
        self._reporter.state(self._breaker.state)

    def distrust(self) -> None:
        """Take refusals for the destination's until it takes an event, for it did not before."""
        self._refusals.resume()

    def probe_now(self) -> None:
        """Try the sink at once, whatever it has been waiting for."""
        self._breaker.probe_now()
        self._fetcher.fetch_now()

    def refetch(self) -> None:
        """Fetch again all that has not started, because it may have changed in the store."""
        self._fetcher.refetch()

    def status(self) -> SinkStatus:
        return self._reporter.status(
            self._breaker,
            in_flight=self._concurrency.in_flight,
            waits_for=self.waits_for(),
            refusals=self._refusals.refusals,
        )

    @property
    def under_way(self) -> int:
        """Number of deliveries that are being sent, or whose outcomes are not written yet."""
        return self._concurrency.in_flight + self._settlement_writer.unsettled

    def waits_for(self) -> WaitReason | None:
        """Return why the next send does not start now; None if it may, or none is known to be due.

        No reason outlasts its cause, so that a dispatcher which is stuck has none.
        """
        if self._breaker.state == "paused":
            return "pause"
        if self._group is None or not self._may_send():
            return "owner"
        if self._breaker.is_tripped:
            return "breaker"
        if min(self._breaker_wait()) > 0:
            return "rate"
        unsettled = self._settlement_writer.unsettled
        if unsettled >= self._concurrency.unsettled_max:
            # A new dispatcher would send again what the store refuses to record.
            return "settlement" if self._settlement_writer.is_at_work() else None
        if not self._room_at_leisure():
            started_until_s = self.last_start_s + self._settings.attempt_limit_s()
            in_time = self._clock.monotonic() < max(started_until_s, self._deadlines.last_s())
            return self._settings.reason_of_sends if in_time else None
        if not self._fetcher.buffer:
            return "fetch" if self._fetcher.fetching else None
        return "credit" if self._backpressure.is_high() else None

    def hold(self, *, is_held: bool) -> None:
        """Start nothing, or start again; `replace` ends a hold."""
        self._is_held = is_held
        self._wakeup.set()

    async def replace(self, sink: Sink) -> None:
        """Send through another sink once the sends under way have ended."""
        self._is_held = True
        try:
            if self._slots:
                await asyncio.wait(self._slots)
            self._send = send_function(sink)
        finally:
            self.hold(is_held=False)

    async def drain(self, grace: Duration) -> None:
        """Start nothing more, and cancel sends that are still running after the grace.

        Their deliveries are due again after the next start.
        """
        self._stop_starting()
        until_s = self._clock.monotonic() + grace.seconds
        if self._slots:
            _, late = await asyncio.wait(self._slots, timeout=grace.seconds)
            for task in late:
                task.cancel()
        await self._settlement_writer.flush(max(FLUSH_MIN_S, until_s - self._clock.monotonic()))
        await self._settlement_writer.stop()

    async def sends_ended(self) -> None:
        """Return once no send is in flight, also none that ignores its cancellation."""
        if self._slots:
            await asyncio.wait(self._slots)

    def cut_off(self) -> int:
        """Start nothing more, and cancel the sends in flight; `drain` then waits for none.

        Returns how many deliveries were in flight; they are due again after the next start.
        """
        self._stop_starting()
        in_flight = self._concurrency.in_flight
        for task in self._slots:
            task.cancel()
        return in_flight

    def _stop_starting(self) -> None:
        self._draining, self._group = True, None
        self._fetcher.stop()
        self._wakeup.set()

    def _prefetch(self, group: asyncio.TaskGroup) -> None:
        # While the breaker blocks, deliveries are better left in the store.
        is_due = self._fetcher.is_due() and not self._draining
        if is_due and min(self._breaker_wait()) <= 0:
            self._fetcher.fill(group)

    def _start_all(self, group: asyncio.TaskGroup) -> float:
        """Start all that may start now; return the seconds until there may be more to do."""
        while start := self._next():
            task = group.create_task(self._run_slot(start, group))
            self._slots.add(task)
            task.add_done_callback(self._slots.discard)
        room = self._room_at_leisure()
        self._is_resting = self._awaits_credit = False
        if self._fetcher.buffer and room:
            wait_s = self._wait_for_next_s()
            if not self._may_send():
                return max(wait_s, OWNER_POLL_S)
            if wait_s > 0 or not self._backpressure.is_high():
                return wait_s
            self._backpressure.credit.request(self._credit)
            self._awaits_credit = not self._sends_alone()
            # Then credit is shared however little it is, and a standstill of requests is noticed.
            return BACKPRESSURE_POLL_S
        if self._fetcher.buffer or self._fetcher.fetching or not room:
            # The end of a send or of a fetch sets the wakeup.
            return math.inf
        # A tripped breaker may wait for a send in flight to end.
        self._is_resting = not self._breaker.is_tripped
        return max(self._fetcher.due_s(), min(self._breaker_wait()))

    def _next(self) -> _Start | None:
        """Take the next batch that may start now from the buffer."""
        buffer = self._fetcher.buffer
        if not buffer:
            return None
        sends = 0 if self._draining or not self._may_send() else self._room()
        now_s = self._clock.monotonic()
        room = self._breaker.room(sends, in_flight=self._concurrency.in_flight, now_s=now_s)
        pop = buffer.pop_probe if self._breaker.is_tripped else buffer.pop
        batch = pop(room, now_s)
        if not batch:
            return None
        tried = sum(1 for delivery in batch if delivery.tries)
        ticket = self._breaker.start(untried=len(batch) - tried, tried=tried, now_s=now_s)
        self.last_start_s = now_s
        self._concurrency.begin(len(batch))
        self._credit.spend(len(batch))
        return batch, ticket

    def _wait_for_next_s(self) -> float:
        wait, buffer = self._breaker_wait(), self._fetcher.buffer
        tried_s = wait.tried_s if buffer.has_tried else math.inf
        if not buffer.has_untried or wait.untried_s > 0:
            return min(tried_s, wait.untried_s if buffer.has_untried else math.inf)
        gap_s = buffer.wait_s(self._clock.monotonic())
        if gap_s > 0:
            # A timer of its own, because the main wait would end in a fetch.
            if self._gap_timer is None:
                loop = asyncio.get_running_loop()
                self._gap_timer = loop.call_later(gap_s, self._on_gap_over)
            return tried_s
        return 0.0

    def _on_gap_over(self) -> None:
        self._gap_timer = None
        self._wakeup.set()

    def _room(self) -> int:
        room = self._room_at_leisure()
        if not self._backpressure.is_high():
            return room
        room = min(room, self._credit.balance)
        if room or not self._sends_alone():
            return room
        unsettled = self._settlement_writer.unsettled
        return self._concurrency.room(unsettled=unsettled, alone=True)

    def _sends_alone(self) -> bool:
        """Whether one send runs at a time: requests wait, and none earns credit."""
        backpressure = self._backpressure
        return backpressure.is_high() and backpressure.credit.has_stalled(self._credit)

    def _room_at_leisure(self) -> int:
        """Return the room without backpressure."""
        if self._is_held:
            return 0
        unsettled = self._settlement_writer.unsettled
        return self._concurrency.room(unsettled=unsettled, alone=False)

    def _breaker_wait(self) -> Wait:
        return self._breaker.wait(
            in_flight=self._concurrency.in_flight, now_s=self._clock.monotonic()
        )

    async def _wait(self, wait_s: float) -> None:
        """Wait for a wakeup or the timeout; neither overrides the breaker."""
        try:
            async with asyncio.timeout(max(0.0, min(wait_s, POLL_INTERVAL_S))):
                await self._wakeup.wait()
        except TimeoutError:
            self._backpressure.credit.remind(self._credit)
            # A fetch is due, whatever the reason for the wait was.
            self._fetcher.fetch_by(self._clock.now_ms())

    async def _run_slot(self, start: _Start | None, group: asyncio.TaskGroup) -> None:
        """Send batch after batch: a task for each would cost more."""
        try:
            while start:
                await self._attempt(start, group)
                self._prefetch(group)
                start = self._next()
        finally:
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        """Wake `run` if it may be waiting for a slot."""
        if not (self._is_resting or self._awaits_credit):
            self._wakeup.set()

    async def _attempt(self, start: _Start, group: asyncio.TaskGroup) -> None:
        batch, ticket = start
        events = [delivery.event for delivery in batch]
        try:
            if self._enrichment is not None:
                events = await self._enrichment.enrich(events)
            # Again, right before the send: the process may have been stopped since the start.
            if not self._may_send():
                self._store.release(batch)
                return
            started_ms, started_s = self._clock.now_ms(), self._clock.monotonic()
            results = await self._try(events)
        finally:
            # The slots are free again before the outcomes are written.
            self._concurrency.end(len(batch))
        results = judge_batch(
            batch,
            results,
            self._refusals,
            is_current=self._breaker.is_current(ticket),
            last_delivered_ms=self._reporter.last_delivered_ms,
        )
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        self._reporter.sent([error for _, error in results], now_s=now_s)
        finished = decide_batch(
            batch,
            results,
            self._settings.retry,
            last_delivered_ms=self._reporter.last_delivered_ms,
            probing=ticket.probing,
            started_ms=started_ms,
            now_ms=now_ms,
            seconds=now_s - started_s,
            random=self._random,
        )
        self._update_breaker(finished, ticket, now_s=now_s)
        # A send that starts alone waits for the outcome of the one before.
        self._settlement_writer.add(group, finished, at_once=self._sends_alone())

    async def _try(self, events: list[Event]) -> list[AttemptResult]:
        if self._enrichment is None:
            return await self._send_once(events)
        return await self._enrichment.attempt(events, self._send_once)

    async def _send_once(self, events: Sequence[Event]) -> list[AttemptResult]:
        return await attempt(
            self._send,
            self.name,
            events,
            limit=self._settings.send_timeout(),
            deadlines=self._deadlines,
        )

    def _update_breaker(
        self, finished: Sequence[FinishedAttempt], ticket: Ticket, *, now_s: float
    ) -> None:
        success = next((attempted for attempted in finished if attempted.error is None), None)
        if success is not None:
            # One success says more about the sink than failures beside it, but not than a pause.
            pauses = (attempted for attempted in finished if attempted.asks_for_pause)
            finished = [success, *pauses]
        for attempted in finished:
            previous = self._breaker.state
            self._breaker.record(
                attempted.error,
                ticket,
                event=attempted.settlement.delivery.seq,
                standing=attempted.standing,
                now_s=now_s,
            )
            if self._breaker.state != previous:
                reason = "" if attempted.error is None else attempted.error.reason
                self._on_state_change(previous, reason)

    def _on_state_change(self, previous: State, reason: str) -> None:
        self._reporter.state_changed(self._breaker.state, previous, reason=reason)
        if self._breaker.state == "active":
            # Free slots can start before this outcome is written.
            self._wakeup.set()
        else:
            self._fetcher.release()
            self._fetcher.fetch_now()

    def _on_settled(self, delivery: Delivery, due_ms: float | None) -> None:
        if due_ms is None and delivery.turn is None:
            self._wake_for_room()
            return
        # The next delivery of the same ordering key may be due now.
        self._fetcher.fetch_by(0 if due_ms is None else due_ms)
        self._wakeup.set()
