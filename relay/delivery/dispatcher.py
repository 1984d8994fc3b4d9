"""One sink's half of the relay: leases what is due, sends it, and settles what became of it."""

import asyncio
import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from relay.core.backpressure import Backpressure
from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.delivery import Delivery
from relay.core.sink import Sink, SinkSettings
from relay.core.sink_status import SinkStatus, State
from relay.core.timeouts import Deadlines
from relay.delivery.attempt import AttemptResult, Judged, Moment, attempt, judged, sending
from relay.delivery.circuit_breaker import CircuitBreaker, Ticket, Wait
from relay.delivery.concurrency import ConcurrencyLimit
from relay.delivery.fetcher import Fetcher
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import FinishedAttempt, SettlementWriter
from relay.store import Store
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

LOOK_AGAIN_S = 30.0
"""The longest wait between two looks, so that a clock that was set back heals by itself."""

GIVE_WAY_S = 0.1

WRITTEN_S = 1.0
"""What has ended is written after a drain even if its sends took the whole grace."""


class _Starting(NamedTuple):
    """A batch that may start."""

    batch: list[Delivery]
    ticket: Ticket


class Dispatcher:
    """Runs until `drain`; `wake` tells it of new work."""

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
    ) -> None:
        """One send at a time while `backpressure` is high: stored deliveries are safe already."""
        self.name = settings.name
        self._settings = settings
        self._send = sending(sink)
        self._store = store
        self._clock = clock
        self._random = random
        self._backpressure = backpressure
        self._reporter = DeliveryReporter(settings, metrics=metrics, clock=clock, activity=activity)
        self._breaker = CircuitBreaker(settings.retry, settings.pace(), random=random)
        self._wakeup = asyncio.Event()
        self._attempts: set[asyncio.Task[None]] = set()
        self._concurrency = ConcurrencyLimit(settings.slots(), settings.batch())
        self._settlement_writer = SettlementWriter(
            self.name,
            store=store,
            clock=clock,
            reporter=self._reporter,
            settled=self._settled,
        )
        self._fetcher = Fetcher(
            settings,
            store=store,
            clock=clock,
            ring=self._wakeup.set,
            bury=self._settlement_writer.bury,
        )
        self._ringing: asyncio.TimerHandle | None = None
        self._draining = False
        self._deadlines = Deadlines(clock)

    def wake(self) -> None:
        """Say that a delivery may be due; costs nothing when called often."""
        self._fetcher.wake()

    async def run(self) -> None:
        """Send what is due until drained; whatever goes wrong with the store is raised."""
        self._reporter.state(self._breaker.state)
        async with asyncio.TaskGroup() as group:
            while not self._draining:
                # Cleared before looking: what rings while we look is then not lost.
                self._wakeup.clear()
                self._fetcher.watch_clock()
                self._fill(group)
                wait_s = self._start(group)
                await self._wait(wait_s)

    def pause(self, *, since_ms: int | None = None) -> None:
        """Start nothing more until `resume`; what is on its way ends as it does.

        `since_ms` is given for a sink that was paused before this relay, or this config, began.
        """
        self._breaker.pause()
        self._fetcher.give_back()
        self._reporter.state(self._breaker.state, since_ms=since_ms)

    def resume(self) -> None:
        """Go on where `pause` stopped, in the state that the sink was in."""
        self._breaker.resume()
        self._fetcher.fetch_now()
        self._reporter.state(self._breaker.state)

    def probe_now(self) -> None:
        """Try the sink at once, whatever it has been waiting for."""
        self._breaker.probe_now()
        self._fetcher.fetch_now()

    def refetch(self) -> None:
        """Look again at all that has not begun, because it may have changed in the store."""
        self._fetcher.refetch()

    def condition(self) -> SinkStatus:
        """How the sink is doing right now."""
        return self._reporter.condition(self._breaker, in_flight=self._concurrency.sending)

    async def drain(self, grace: Duration) -> None:
        """Start nothing more, let running sends end for as long as the grace, then leave them.

        What was left comes due again after the next start.
        """
        self._draining = True
        self._wakeup.set()
        until_s = self._clock.monotonic() + grace.seconds
        if self._attempts:
            _, late = await asyncio.wait(self._attempts, timeout=grace.seconds)
            for task in late:
                task.cancel()
        await self._settlement_writer.flush(max(WRITTEN_S, until_s - self._clock.monotonic()))
        await self._settlement_writer.stop()
        self._fetcher.give_back()

    def _fill(self, group: asyncio.TaskGroup) -> None:
        # What a closed gate keeps waiting is better left in the store.
        if min(self._wait_for_gate()) <= 0:
            self._fetcher.fill(group)

    def _start(self, group: asyncio.TaskGroup) -> float:
        """Start what may start now; return the seconds until there may be more to do."""
        while starting := self._next():
            task = group.create_task(self._work(starting, group))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
        room = self._room()
        if self._fetcher.hand and room:
            return self._wait_for_next_s()
        if self._fetcher.hand or self._fetcher.looking or not room:
            # Nobody rings when the door is quiet again.
            return GIVE_WAY_S if self._backpressure.is_high() else math.inf
        return max(self._fetcher.due_s(), min(self._wait_for_gate()))

    def _next(self) -> _Starting | None:
        """Take from the hand what may start now and goes out together."""
        sends = 0 if self._draining else self._room()
        now_s = self._clock.monotonic()
        room = self._breaker.room(sends, in_flight=self._concurrency.sending, now_s=now_s)
        hand = self._fetcher.hand
        batch = hand.pop(room, now_s) if self._breaker.is_open else hand.probe(room, now_s)
        if not batch:
            return None
        tried = sum(1 for delivery in batch if delivery.tries)
        ticket = self._breaker.started(untried=len(batch) - tried, tried=tried, now_s=now_s)
        self._concurrency.begin(len(batch))
        return _Starting(batch, ticket)

    def _wait_for_next_s(self) -> float:
        wait, hand = self._wait_for_gate(), self._fetcher.hand
        tried_s = wait.tried_s if hand.has_tried else math.inf
        if not hand.has_untried or wait.untried_s > 0:
            return min(tried_s, wait.untried_s if hand.has_untried else math.inf)
        apart_s = hand.wait_s(self._clock.monotonic())
        if apart_s > 0:
            # By a bell of its own: that a replay waits its turn is no reason to look again.
            self._ring_in(apart_s)
            return tried_s
        return 0.0

    def _ring_in(self, wait_s: float) -> None:
        if self._ringing is None:
            loop = asyncio.get_running_loop()
            self._ringing = loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._ringing = None
        self._wakeup.set()

    def _room(self) -> int:
        return self._concurrency.room(
            unsettled=self._settlement_writer.count, alone=self._backpressure.is_high()
        )

    def _wait_for_gate(self) -> Wait:
        return self._breaker.wait(
            in_flight=self._concurrency.sending, now_s=self._clock.monotonic()
        )

    async def _wait(self, wait_s: float) -> None:
        """Until the bell rings or the time is over; neither opens a gate that is closed."""
        try:
            async with asyncio.timeout(max(0.0, min(wait_s, LOOK_AGAIN_S))):
                await self._wakeup.wait()
        except TimeoutError:
            # Whatever the reason for the wait was, it is time to look.
            self._fetcher.fetch_by(self._clock.now_ms())

    async def _work(self, starting: _Starting | None, group: asyncio.TaskGroup) -> None:
        """Keep a slot busy while there is something to start: a task each would cost more."""
        try:
            while starting:
                await self._attempt(starting, group)
                self._fill(group)
                starting = self._next()
        finally:
            self._wakeup.set()

    async def _attempt(self, starting: _Starting, group: asyncio.TaskGroup) -> None:
        batch, ticket = starting
        started = Moment.of(self._clock)
        tried = await self._try(batch)
        ended = Moment.of(self._clock)
        self._reporter.sent([error for _, error in tried], now_s=ended.s)
        found = judged(
            batch,
            tried,
            self._settings.retry,
            taken_ms=self._reporter.last_delivered_ms,
            probing=ticket.probing,
            started=started,
            ended=ended,
            random=self._random,
        )
        self._learn(found, ticket, now_s=ended.s)
        for each in found:
            self._settlement_writer.add(
                group, FinishedAttempt(each.settlement, ended.s - started.s)
            )

    async def _try(self, batch: list[Delivery]) -> list[AttemptResult]:
        """Make one try; its slots are free again before the outcomes are written."""
        try:
            return await attempt(
                self._send,
                self.name,
                [delivery.event for delivery in batch],
                limit=self._settings.send_timeout(),
                deadlines=self._deadlines,
            )
        finally:
            self._concurrency.end(len(batch))

    def _learn(self, found: Sequence[Judged], ticket: Ticket, *, now_s: float) -> None:
        taken = next((each for each in found if each.error is None), None)
        if taken is not None:
            # It says more of the sink than all that failed beside it, but for a wish to pause.
            found = [taken, *(each for each in found if each.asks_for_pause)]
        for each in found:
            before = self._breaker.state
            self._breaker.ended(
                each.error,
                ticket,
                event=each.settlement.delivery.seq,
                standing=each.standing,
                now_s=now_s,
            )
            if self._breaker.state != before:
                self._changed(before, "" if each.error is None else each.error.reason)

    def _changed(self, before: State, reason: str) -> None:
        self._reporter.changed(self._breaker.state, before, reason=reason)
        if self._breaker.state == "active":
            # Its free slots need not wait for this one's outcome to be written.
            self._wakeup.set()
        else:
            self._fetcher.give_back()
            self._fetcher.fetch_now()

    def _settled(self, delivery: Delivery, due_ms: float | None) -> None:
        if due_ms is not None:
            self._fetcher.fetch_by(due_ms)
        elif delivery.turn is not None:
            # The next of its turn may be due now.
            self._fetcher.fetch_by(0)
        self._wakeup.set()
