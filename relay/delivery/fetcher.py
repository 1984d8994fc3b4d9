"""When to fetch due deliveries of one sink, and how many."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from relay.core.clock import Clock, ClockSetBack
from relay.core.delivery import Delivery
from relay.core.errors import StoreUnavailable
from relay.core.retry import RETRY_AFTER_CAP_MS
from relay.core.sink import SinkSettings
from relay.delivery.prefetch import PrefetchBuffer
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import STORE_RETRY_S
from relay.store import Store, Tier

LATE_COMMIT_S = 20.0
"""Due times are corrected again after this time.

What was under way when the clock was set may have been committed after the first correction.
"""


class Fetcher:
    """Fetches due deliveries for one sink, ahead of the sends."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        store: Store,
        clock: Clock,
        reporter: DeliveryReporter,
        notify: Callable[[], None],
        dead_letter: Callable[[asyncio.TaskGroup, Sequence[Delivery]], None],
    ) -> None:
        """`notify` is called when there may be more to send.

        `dead_letter` takes due deliveries whose stored body is damaged.
        """
        self._name = settings.name
        self._store = store
        self._clock = clock
        self._reporter = reporter
        self._notify = notify
        self._dead_letter = dead_letter
        self._longest_ms = settings.retry.longest_ms
        self._set_back = ClockSetBack(clock)
        # A restart forgets requested pauses; only the due times that they led to are left.
        self._wait_cap_ms: int | None = max(self._longest_ms, RETRY_AFTER_CAP_MS)
        """Longest legitimate wait of a delivery, to be enforced beside the next fetch.

        A longer one comes from a clock that was ahead.
        """
        self._cap_again_s = clock.monotonic() + LATE_COMMIT_S
        self._last_cap_ms = self._wait_cap_ms
        self._capping: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._fetch_at_ms = 0.0
        self._outdated = False
        """Whether to release the deliveries that the running fetch will return."""
        self._taken: list[Delivery] = []
        """Deliveries taken during the running fetch, which may return older ones."""
        self.fetching = False
        self.buffer = PrefetchBuffer(settings.slots())

    def wake(self) -> None:
        """Report that a delivery may be due; cheap when called often."""
        if self._fetch_at_ms > 0:
            self.fetch_now()

    def has_room(self) -> bool:
        """Whether a new delivery may be taken; not where older ones may have to come first."""
        fetch_at_ms = self._fetch_at_ms
        is_behind = fetch_at_ms <= 0 or fetch_at_ms <= self._clock.now_ms()
        return not is_behind and self.buffer.has_room(len(self._taken) + 1)

    def take(self, delivery: Delivery) -> None:
        """Keep a new delivery that is leased, if there is room."""
        if self.fetching:
            self._taken.append(delivery)
        else:
            self.buffer.add((delivery,))

    def check_clock(self) -> None:
        """Fetch again, and correct due times, once the clock has been set back, and again later."""
        if self._set_back.happened():
            self._wait_cap_ms = self._last_cap_ms = self._longest_ms
            self._cap_again_s = self._clock.monotonic() + LATE_COMMIT_S
            self.fetch_now()
        elif self._clock.monotonic() >= self._cap_again_s:
            self._wait_cap_ms, self._cap_again_s = self._last_cap_ms, math.inf
            self.fetch_now()

    def fetch_now(self) -> None:
        """Make a fetch due now."""
        self._fetch_at_ms = 0.0
        self._notify()

    def fetch_by(self, due_ms: float) -> None:
        """Make a fetch due at that time at the latest."""
        self._fetch_at_ms = min(self._fetch_at_ms, due_ms)

    def due_s(self) -> float:
        """Return the seconds until the next fetch is due."""
        return (self._fetch_at_ms - self._clock.now_ms()) / 1000

    def release(self) -> None:
        """Release all deliveries that have not started."""
        self._store.release(self.buffer.clear())
        self._release_taken()

    def refetch(self) -> None:
        """Fetch again all that has not started, because it may have changed in the store."""
        self.release()
        self._outdated = self.fetching
        self.fetch_now()

    def is_due(self) -> bool:
        """Whether the store may have more now, and no fetch runs."""
        is_time = self._fetch_at_ms <= self._clock.now_ms()
        return not self.fetching and (is_time or self.buffer.is_short())

    def fill(self, group: asyncio.TaskGroup) -> None:
        """Start a fetch, which is due, if the buffer runs low."""
        limits = self.buffer.demand()
        if not limits:
            return
        now_ms = self._clock.now_ms()
        # Set before the fetch: a wakeup during it resets the time, and that must win.
        self._fetch_at_ms = math.inf
        self.fetching = True
        self._fetching = group.create_task(self._fetch(group, limits, now_ms=now_ms))
        if self._wait_cap_ms is not None and self._capping is None:
            # Not before the fetch: it passes over every late delivery, however many there are.
            self._capping = group.create_task(self._cap_waits(self._wait_cap_ms, now_ms))

    def stop(self) -> None:
        """Release all deliveries that have not started, and give up what runs."""
        for task in (self._fetching, self._capping):
            if task is not None:
                task.cancel()
        self.release()

    async def _fetch(
        self, group: asyncio.TaskGroup, limits: Mapping[Tier, int], *, now_ms: int
    ) -> None:
        try:
            lease = await self._store.lease(self._name, now_ms=now_ms, limits=limits)
        except StoreUnavailable as error:
            self._reporter.store_failed(error)
            self._release_taken()
            self._fetch_at_ms = now_ms + STORE_RETRY_S * 1000
        else:
            self.buffer.fetched(limits)
            if lease.damaged:
                self._dead_letter(group, lease.damaged)
            if self._outdated:
                self._store.release(lease.deliveries)
            else:
                self.buffer.add(lease.deliveries)
            self.fetch_by(math.inf if lease.next_due_ms is None else lease.next_due_ms)
            self._add_taken(now_ms)
        self.fetching = self._outdated = False
        self._notify()

    def _add_taken(self, now_ms: int) -> None:
        """Buffer deliveries taken during the fetch, unless older ones are still in the store."""
        if self._fetch_at_ms > now_ms and self.buffer.has_room(len(self._taken)):
            self.buffer.add(self._taken)
            self._taken.clear()
        elif self._taken:
            self._release_taken()
            self.fetch_by(0)

    def _release_taken(self) -> None:
        self._store.release(tuple(self._taken))
        self._taken.clear()

    async def _cap_waits(self, cap_ms: int, now_ms: int) -> None:
        """Shorten waits beyond the sink's longest retry, which a wrong clock has made."""
        # Taken first: the clock may be set back again meanwhile.
        self._wait_cap_ms = None
        try:
            count = await self._store.bring_forward(
                self._name,
                beyond_ms=now_ms + cap_ms,
                to_ms=now_ms + self._longest_ms,
                now_ms=now_ms,
            )
        except StoreUnavailable as error:
            self._reporter.store_failed(error)
            if self._wait_cap_ms is None:
                self._wait_cap_ms = cap_ms
            self.fetch_by(self._clock.now_ms() + STORE_RETRY_S * 1000)
        else:
            if count or self._wait_cap_ms is not None:
                self.fetch_now()
        self._capping = None
        self._notify()
