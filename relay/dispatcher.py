"""One sink's half of the relay: leases what is due, sends it, and settles what became of it."""

import asyncio
import math
from collections.abc import Callable, Mapping
from random import Random

from relay import log
from relay.account import Account
from relay.attempt import attempt
from relay.clock import Clock
from relay.condition import Condition
from relay.deadline import Deadlines
from relay.delivery import Answer, Attempt, Delivery, Settlement
from relay.errors import SinkError, StoreBroken, StoreError
from relay.feed import Feed
from relay.gate import Gate
from relay.hand import Hand
from relay.metrics import Metrics
from relay.retry import decide
from relay.settings import Duration
from relay.settler import STORE_AGAIN_S, Ended, Settler
from relay.sink import Sink, SinkSettings
from relay.store import Store, Tier

LOOK_AGAIN_S = 30.0
"""The longest wait between two looks, so that a clock that was set back heals by itself."""

GIVE_WAY_S = 0.1

WRITTEN_S = 1.0
"""What has ended is written after a drain even if its sends took the whole grace."""

UNSETTLED = 4
UNSETTLED_MAX = 256
"""Outcomes that wait for the disk while others are sent: so many per slot, and at most in all."""


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
        dice: Random,
        gives_way: Callable[[], bool],
        feed: Feed,
    ) -> None:
        """While `gives_way()`, one send at a time: what waits here is safe already."""
        self.name = settings.name
        self._settings = settings
        self._sink = sink
        self._store = store
        self._clock = clock
        self._dice = dice
        self._gives_way = gives_way
        self._account = Account(settings, metrics=metrics, clock=clock, feed=feed)
        self._gate = Gate(settings.retry, settings.pace(), dice=dice)
        self._bell = asyncio.Event()
        self._hand = Hand(settings.slots())
        self._attempts: set[asyncio.Task[None]] = set()
        self._sending = 0
        self._settler = Settler(
            self.name,
            store=store,
            clock=clock,
            account=self._account,
            settled=self._settled,
        )
        self._looking = False
        self._outdated = False
        """Whether what the look under way will find is to be put back."""
        self._ringing: asyncio.TimerHandle | None = None
        self._look_at_ms = 0.0
        self._draining = False
        self._sampled = log.Sampled(clock)
        self._deadlines = Deadlines(clock)

    def wake(self) -> None:
        """Say that a delivery may be due; costs nothing when called often."""
        if self._look_at_ms > 0:
            self._look_at_ms = 0.0
            self._bell.set()

    async def run(self) -> None:
        """Send what is due until drained; whatever goes wrong with the store is raised."""
        self._account.state(self._gate.state)
        async with asyncio.TaskGroup() as group:
            while not self._draining:
                # Cleared before looking: what rings while we look is then not lost.
                self._bell.clear()
                self._fill(group)
                wait_s = self._start(group)
                await self._wait(wait_s)

    def pause(self) -> None:
        """Start nothing more until `resume`; what is on its way ends as it does."""
        self._gate.pause()
        self._store.release(self._hand.clear())
        self._account.state(self._gate.state)

    def resume(self) -> None:
        """Go on where `pause` stopped, in the state that the sink was in."""
        self._gate.resume()
        self._look_at_ms = 0.0
        self._bell.set()
        self._account.state(self._gate.state)

    def put_back(self) -> None:
        """Look again at all that has not begun, because it may have changed in the store."""
        self._store.release(self._hand.clear())
        self._outdated = self._looking
        self._look_at_ms = 0.0
        self._bell.set()

    def condition(self) -> Condition:
        """How the sink is doing right now."""
        return self._account.condition(self._gate, in_flight=self._sending)

    async def drain(self, grace: Duration) -> None:
        """Start nothing more, let running sends end for as long as the grace, then leave them.

        What was left comes due again after the next start.
        """
        self._draining = True
        self._bell.set()
        until_s = self._clock.monotonic() + grace.seconds
        if self._attempts:
            _, late = await asyncio.wait(self._attempts, timeout=grace.seconds)
            for task in late:
                task.cancel()
        await self._settler.flush(max(WRITTEN_S, until_s - self._clock.monotonic()))
        await self._settler.stop()
        self._store.release(self._hand.clear())

    def _fill(self, group: asyncio.TaskGroup) -> None:
        """Look for what is due, beside the sends, so that a slot finds the next one at hand."""
        now_ms = self._clock.now_ms()
        limits = self._hand.wants()
        is_time = now_ms >= self._look_at_ms or self._hand.is_short()
        if self._looking or not limits or not is_time or self._wait_for_gate_s() > 0:
            return
        # Set before the look: a bell that rings meanwhile resets it, and that must win.
        self._look_at_ms = math.inf
        self._looking = True
        group.create_task(self._look(limits, now_ms=now_ms))

    async def _look(self, limits: Mapping[Tier, int], *, now_ms: int) -> None:
        try:
            lease = await self._store.lease(self.name, now_ms=now_ms, limits=limits)
        except StoreBroken:
            raise
        except StoreError as error:
            self._sampled.line("store.unavailable", reason=str(error), sink=self.name)
            self._look_at_ms = now_ms + STORE_AGAIN_S * 1000
        else:
            self._hand.looked(limits)
            if self._outdated:
                self._store.release(lease.deliveries)
            else:
                self._hand.take(lease.deliveries)
            next_ms = math.inf if lease.next_due_ms is None else lease.next_due_ms
            self._look_at_ms = min(self._look_at_ms, next_ms)
        self._looking = self._outdated = False
        self._bell.set()

    def _start(self, group: asyncio.TaskGroup) -> float:
        """Start what may start now; return the seconds until there may be more to do."""
        busy = self._gives_way()
        while self._hand and self._has_room(busy=busy) and not self._draining:
            wait_s = self._wait_for_gate_s()
            if wait_s > 0:
                return wait_s
            now_s = self._clock.monotonic()
            apart_s = self._hand.wait_s(now_s)
            if apart_s > 0:
                # By a bell of its own: that a replay waits its turn is no reason to look again.
                self._ring_in(apart_s)
                return math.inf
            self._gate.started(now_s=now_s)
            self._sending += 1
            task = group.create_task(self._attempt(self._hand.pop(now_s), group))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
        if self._hand or self._looking or not self._has_room(busy=busy):
            # Nobody rings when the door is quiet again.
            return GIVE_WAY_S if busy else math.inf
        due_s = (self._look_at_ms - self._clock.now_ms()) / 1000
        return max(due_s, self._wait_for_gate_s())

    def _ring_in(self, wait_s: float) -> None:
        if self._ringing is None:
            loop = asyncio.get_running_loop()
            self._ringing = loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._ringing = None
        self._bell.set()

    def _has_room(self, *, busy: bool) -> bool:
        unsettled = self._settler.count
        if busy:
            return not self._sending and not unsettled
        slots = self._settings.slots()
        return self._sending < slots and unsettled < min(UNSETTLED * slots, UNSETTLED_MAX)

    def _wait_for_gate_s(self) -> float:
        return self._gate.wait_s(in_flight=self._sending, now_s=self._clock.monotonic())

    async def _wait(self, wait_s: float) -> None:
        """Until the bell rings or the time is over; neither opens a gate that is closed."""
        try:
            async with asyncio.timeout(max(0.0, min(wait_s, LOOK_AGAIN_S))):
                await self._bell.wait()
        except TimeoutError:
            # Whatever the reason for the wait was, it is time to look.
            self._look_at_ms = min(self._look_at_ms, self._clock.now_ms())

    async def _attempt(self, delivery: Delivery, group: asyncio.TaskGroup) -> None:
        started_ms, started_s = self._clock.now_ms(), self._clock.monotonic()
        answer, error = await self._send(delivery)
        now_s = self._clock.monotonic()
        decision = decide(
            delivery,
            error,
            self._settings.retry,
            started_ms=started_ms,
            now_ms=self._clock.now_ms(),
            dice=self._dice,
        )
        made = Attempt(
            started_ms=started_ms,
            duration_ms=round((now_s - started_s) * 1000),
            result=decision.result,
            status=answer.status,
            reason=decision.reason,
            answer=answer.excerpt,
        )
        self._learn(error, started_s=started_s, now_s=now_s)
        settlement = Settlement(delivery=delivery, attempt=made, due_ms=decision.due_ms)
        self._settler.add(group, Ended(settlement, now_s - started_s))

    async def _send(self, delivery: Delivery) -> tuple[Answer, SinkError | None]:
        """Make one try; its slot is free again before the outcome is written."""
        try:
            return await attempt(
                self._sink,
                self.name,
                delivery.event,
                limit=self._settings.patience(),
                deadlines=self._deadlines,
            )
        finally:
            self._sending -= 1
            self._bell.set()

    def _learn(self, error: SinkError | None, *, started_s: float, now_s: float) -> None:
        self._account.sent(error, now_s=now_s)
        before = self._gate.state
        self._gate.ended(error, started_s=started_s, now_s=now_s)
        state = self._gate.state
        if state == before:
            return
        self._account.changed(state, before, reason="" if error is None else error.reason)
        if state == "active":
            # Its free slots need not wait for this one's outcome to be written.
            self._bell.set()
        else:
            self._store.release(self._hand.clear())
            self._look_at_ms = 0.0

    def _settled(self, delivery: Delivery, due_ms: float | None) -> None:
        if due_ms is not None:
            self._look_at_ms = min(self._look_at_ms, due_ms)
        elif delivery.turn is not None:
            # The next of its turn may be due now.
            self._look_at_ms = 0.0
        self._bell.set()
