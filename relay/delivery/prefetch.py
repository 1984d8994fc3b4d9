"""Prefetch of one sink's due deliveries: when to lease how many, and which of them start next.

Live ones go before replayed ones, and deliveries never tried before retries.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from relay.core.clock import Clock, ClockSetBack
from relay.core.delivery import Delivery
from relay.core.errors import StoreUnavailable
from relay.core.retry import RETRY_AFTER_CAP_MS
from relay.core.sink import SinkSettings
from relay.delivery.circuit_breaker import SendCapacity
from relay.delivery.reporter import DeliveryReporter
from relay.delivery.settlement_writer import STORE_RETRY_S
from relay.store import Store, Tier

FETCH_MIN = 32
"""Deliveries of a tier leased at once, unless twice the slots are more."""

QUIET_S = 2.0
"""Time after the last live delivery from which replays may use the whole sink."""

REPLAY_GAP_S = 0.005
"""Minimum gap between replayed deliveries while live traffic flows, so that it is not delayed."""

BUFFERED_SLOTS_MAX = 64
"""Slots for which the next deliveries are buffered, twice.

A fetch takes as long as one or two batches are in flight.
"""

BUFFERED_BYTES_MAX = 8 << 20
"""Total size of buffered bodies, in bytes, from which nothing more is fetched."""

RETRY_SHARE = 4
"""One send in this many is a retry, even while deliveries never tried wait."""


class PrefetchBuffer:
    """Holds a few deliveries of each tier, and asks for more below two for each slot."""

    def __init__(self, slots: int) -> None:
        self._low = 2 * min(slots, BUFFERED_SLOTS_MAX)
        self._capacity = self._low + max(self._low, FETCH_MIN)
        self._tiers: dict[Tier, deque[Delivery]] = {tier: deque() for tier in get_args(Tier)}
        self._bytes = 0
        self._skipped: set[Tier] = set()
        self._last_pop_s: dict[Tier, float] = dict.fromkeys(self._tiers, -math.inf)
        self._pops_since_retry = 0

    def __bool__(self) -> bool:
        return any(self._tiers.values())

    @property
    def has_untried(self) -> bool:
        return bool(self._tiers["live"] or self._tiers["replay"])

    @property
    def has_tried(self) -> bool:
        return bool(self._tiers["tried"])

    def has_room(self, count: int) -> bool:
        """Whether this many live deliveries may be added that were not fetched."""
        is_free = len(self._tiers["live"]) + count <= self._capacity
        return is_free and self._bytes < BUFFERED_BYTES_MAX

    def demand(self) -> dict[Tier, int]:
        """Return how many more to fetch of each tier that runs low, once the live one does."""
        if len(self._tiers["live"]) >= self._low or self._bytes >= BUFFERED_BYTES_MAX:
            return {}
        return {
            tier: self._capacity - len(buffered)
            for tier, buffered in self._tiers.items()
            if len(buffered) < self._low
        }

    def fetched(self, limits: Iterable[Tier]) -> None:
        """Record which tiers the last fetch covered."""
        self._skipped = set(self._tiers) - set(limits)

    def is_short(self) -> bool:
        """Whether a tier runs low that the last fetch skipped: its next due time is unknown."""
        return any(len(self._tiers[tier]) < self._low for tier in self._skipped)

    def add(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._bytes += len(delivery.event.body)
            self._tiers[_tier(delivery)].append(delivery)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next delivery never tried may go; 0 for a live one."""
        if self._tiers["live"] or self._is_quiet(now_s):
            return 0.0
        return max(0.0, self._last_pop_s["replay"] + REPLAY_GAP_S - now_s)

    def pop(self, room: SendCapacity, now_s: float) -> list[Delivery]:
        """Take the next to send; a retry goes alone, because it could fail its whole batch."""
        if self._pops_since_retry + 1 >= RETRY_SHARE and room.tried and self.has_tried:
            return self._pop_retry(now_s)
        return self.pop_probe(room, now_s)

    def pop_probe(self, room: SendCapacity, now_s: float) -> list[Delivery]:
        """Take the next to send; a retry only where nothing else may go."""
        popped = self._pop_untried(room.untried, now_s)
        if popped or not room.tried:
            self._pops_since_retry += bool(popped)
            return popped
        return self._pop_retry(now_s)

    def clear(self) -> tuple[Delivery, ...]:
        """Empty the buffer and return its content, to be released."""
        buffered = tuple(delivery for tier in self._tiers.values() for delivery in tier)
        for tier in self._tiers.values():
            tier.clear()
        self._bytes = 0
        return buffered

    def _is_quiet(self, now_s: float) -> bool:
        return now_s - self._last_pop_s["live"] >= QUIET_S

    def _pop_retry(self, now_s: float) -> list[Delivery]:
        self._pops_since_retry = 0
        return self._pop_tier("tried", 1, now_s)

    def _pop_untried(self, count: int, now_s: float) -> list[Delivery]:
        popped = self._pop_tier("live", count, now_s)
        if len(popped) < count and self.wait_s(now_s) <= 0:
            replays = count - len(popped) if self._is_quiet(now_s) else 1
            popped += self._pop_tier("replay", replays, now_s)
        return popped

    def _pop_tier(self, tier: Tier, count: int, now_s: float) -> list[Delivery]:
        buffered = self._tiers[tier]
        popped = [buffered.popleft() for _ in range(min(count, len(buffered)))]
        if popped:
            self._last_pop_s[tier] = now_s
            self._bytes -= sum(len(delivery.event.body) for delivery in popped)
        return popped


def _tier(delivery: Delivery) -> Tier:
    if delivery.tries:
        return "tried"
    return "live" if delivery.replay is None else "replay"


LATE_COMMIT_S = 20.0
"""Delay of the second correction of due times after the clock was set.

Writes that were under way then may have been committed after the first one.
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
