"""What of one sink's backlog is at hand, and when to look for more of it."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from relay.core.clock import Clock, SetBack
from relay.core.delivery import Delivery
from relay.core.errors import StoreBroken, StoreError
from relay.core.retry import RETRY_AFTER_CAP_MS
from relay.core.sink import SinkSettings
from relay.delivery.prefetch import PrefetchBuffer
from relay.delivery.settlement_writer import STORE_AGAIN_S
from relay.store import Store, Tier
from relay.telemetry import log


class Fetcher:
    """Looks for what is due beside the sends, so that a slot finds the next one at hand."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        store: Store,
        clock: Clock,
        ring: Callable[[], None],
        bury: Callable[[asyncio.TaskGroup, Sequence[Delivery]], None],
    ) -> None:
        """`ring` is called where there may be more to do than before.

        `bury` is given what is due and damaged.
        """
        self._name = settings.name
        self._store = store
        self._clock = clock
        self._ring = ring
        self._bury = bury
        self._longest_ms = settings.retry.longest_ms
        self._set_back = SetBack(clock)
        # After a restart, due times are all that is left of pauses that were asked for.
        self._latest_ms: int | None = max(self._longest_ms, RETRY_AFTER_CAP_MS)
        """Longest wait that a delivery can have, unless a clock that was ahead made it longer."""
        self._sampled = log.Sampled(clock)
        self._look_at_ms = 0.0
        self._outdated = False
        """Whether what the look under way will find is to be put back."""
        self.looking = False
        self.hand = PrefetchBuffer(settings.slots())

    def wake(self) -> None:
        """Say that a delivery may be due; costs nothing when called often."""
        if self._look_at_ms > 0:
            self.fetch_now()

    def watch_clock(self) -> None:
        """Look again, and correct due times, once the clock has been set back."""
        if self._set_back.happened():
            self._latest_ms = self._longest_ms
            self.fetch_now()

    def fetch_now(self) -> None:
        """Have all of what is due looked at, whenever the last look was."""
        self._look_at_ms = 0.0
        self._ring()

    def fetch_by(self, due_ms: float) -> None:
        """Look again at that time at the latest."""
        self._look_at_ms = min(self._look_at_ms, due_ms)

    def due_s(self) -> float:
        """How long until the next look, in seconds."""
        return (self._look_at_ms - self._clock.now_ms()) / 1000

    def give_back(self) -> None:
        """Keep nothing that has not begun."""
        self._store.release(self.hand.clear())

    def refetch(self) -> None:
        """Look again at all that has not begun, because it may have changed in the store."""
        self.give_back()
        self._outdated = self.looking
        self.fetch_now()

    def fill(self, group: asyncio.TaskGroup) -> None:
        """Begin a look where the hand runs low and there may be more."""
        limits = self.hand.wants()
        if self.looking or not limits:
            return
        now_ms = self._clock.now_ms()
        if now_ms < self._look_at_ms and not self.hand.is_short():
            return
        # Set before the look: a bell that rings meanwhile resets it, and that must win.
        self._look_at_ms = math.inf
        self.looking = True
        group.create_task(self._look(group, limits, now_ms=now_ms))

    async def _look(
        self, group: asyncio.TaskGroup, limits: Mapping[Tier, int], *, now_ms: int
    ) -> None:
        try:
            await self._heal(now_ms)
            lease = await self._store.lease(self._name, now_ms=now_ms, limits=limits)
        except StoreBroken:
            raise
        except StoreError as error:
            self._sampled.line("store.unavailable", reason=str(error), sink=self._name)
            self._look_at_ms = now_ms + STORE_AGAIN_S * 1000
        else:
            self.hand.looked(limits)
            if lease.damaged:
                self._bury(group, lease.damaged)
            if self._outdated:
                self._store.release(lease.deliveries)
            else:
                self.hand.take(lease.deliveries)
            self.fetch_by(math.inf if lease.next_due_ms is None else lease.next_due_ms)
        self.looking = self._outdated = False
        self._ring()

    async def _heal(self, now_ms: int) -> None:
        """Have nothing wait longer than its sink's retries can, whatever the clock was before."""
        if self._latest_ms is not None:
            await self._store.bring_forward(
                self._name,
                beyond_ms=now_ms + self._latest_ms,
                to_ms=now_ms + self._longest_ms,
                now_ms=now_ms,
            )
            self._latest_ms = None
