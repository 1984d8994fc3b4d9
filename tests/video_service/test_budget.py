"""Requests of one key stay below the service's limit, and its users take turns."""

import asyncio
from collections import Counter
from random import Random

import pytest

from relay.core.config_values import Secret
from relay.core.errors import StoreUnavailable
from relay.core.request_budget import (
    BURST,
    GRANT_LIFE_S,
    PER_MINUTE,
    SHARED_INTERVAL_S,
    Grant,
    ProcessBudgets,
)
from relay.video_service.api import budget
from relay.video_service.api.budget import BLOCK_MAX, Budget
from tests.conftest import ManualClock


@pytest.fixture
def spent(clock: ManualClock) -> Budget:
    """Return a budget whose waits take no time but advance the clock."""

    async def sleep(seconds: float) -> None:
        clock.ms += max(round(seconds * 1000), 1)
        await asyncio.sleep(0)

    budgets = ProcessBudgets(monotonic=clock.monotonic)
    return Budget(Secret("a-key"), budgets, monotonic=clock.monotonic, sleep=sleep)


async def test_no_minute_has_more_than_its_share(spent: Budget, clock: ManualClock) -> None:
    moments = []
    for number in range(3 * PER_MINUTE):
        if number == PER_MINUTE:
            clock.ms += 90_000  # a pause, after which a burst is allowed again
        await spent.grant("one")
        moments.append(clock.ms)
    for first in moments:
        assert sum(first <= moment < first + 60_000 for moment in moments) <= PER_MINUTE
    assert moments[BURST - 1] == moments[0]
    assert moments[-1] - moments[PER_MINUTE] < 130_000


async def test_users_take_turns_however_many_requests_one_has(spent: Budget) -> None:
    order: list[str] = []

    async def ask(user: str) -> None:
        await spent.grant(user)
        order.append(user)

    async with asyncio.TaskGroup() as group:
        for _ in range(300):
            group.create_task(ask("many"))
        await asyncio.sleep(0)
        for _ in range(3):
            group.create_task(ask("few"))
    assert Counter(order) == {"many": 300, "few": 3}
    assert [n for n, user in enumerate(order) if user == "few"][-1] <= BURST + 8


async def test_a_request_that_is_given_up_takes_nothing_from_the_others(
    spent: Budget, clock: ManualClock
) -> None:
    for _ in range(BURST):
        await spent.grant("one")
    begun_ms = clock.ms
    tasks = [asyncio.create_task(spent.grant("one")) for _ in range(1000)]
    await asyncio.sleep(0)
    for task in tasks[:-1]:
        task.cancel()
    await tasks[-1]
    assert clock.ms - begun_ms < 1000


async def test_nothing_is_granted_while_the_service_asks_for_a_pause(
    spent: Budget, clock: ManualClock
) -> None:
    await spent.pause(30)
    await spent.pause(1)
    begun_ms = clock.ms
    await spent.grant("one")
    assert clock.ms - begun_ms >= 30_000


class SharedBudgets:
    """Fulfils `RequestBudgets` for several relays, by the clock of a test."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._full_at_s = 0.0
        self._paused_until_s = 0.0
        self.statements = self.taken = 0
        self.failures = 0

    async def take(self, key: str, *, most: int) -> Grant:
        self.statements += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the database is away")
        now_s = self._clock.monotonic()
        if now_s < self._paused_until_s:
            return Grant(0, paused_s=self._paused_until_s - now_s)
        full_at_s = max(self._full_at_s, now_s)
        room_s = now_s + BURST * SHARED_INTERVAL_S - full_at_s
        requests = min(most, int(room_s / SHARED_INTERVAL_S))
        self.taken += requests
        self._full_at_s = full_at_s + requests * SHARED_INTERVAL_S
        return Grant(requests, wait_s=SHARED_INTERVAL_S)

    async def pause(self, key: str, seconds: float) -> None:
        self._paused_until_s = max(self._paused_until_s, self._clock.monotonic() + seconds)


class Cluster:
    """Relays with one key; their waits take no time but advance the clock."""

    def __init__(self, clock: ManualClock, size: int) -> None:
        self.shared = SharedBudgets(clock)
        self.relays = [
            Budget(Secret("a-key"), self.shared, monotonic=clock.monotonic, sleep=self._sleep)
            for _ in range(size)
        ]
        self._clock = clock

    async def _sleep(self, seconds: float) -> None:
        self._clock.ms += max(round(seconds * 1000), 1)
        await asyncio.sleep(0)


async def test_no_minute_of_several_relays_has_more_than_the_share_of_one(
    clock: ManualClock,
) -> None:
    cluster = Cluster(clock, 3)
    random = Random(5)
    moments = []
    for _ in range(3 * PER_MINUTE):
        # Some requests take their time, in which a block can run out.
        clock.ms += random.choice((0, 0, 0, 40, 400))
        await random.choice(cluster.relays).grant("one")
        moments.append(clock.ms)
    for first in moments:
        assert sum(first <= moment < first + 60_000 for moment in moments) <= PER_MINUTE


async def test_many_requests_of_a_relay_cost_few_statements(clock: ManualClock) -> None:
    cluster = Cluster(clock, 1)
    for _ in range(BURST):
        await cluster.relays[0].grant("one")
    assert cluster.shared.statements <= BURST / BLOCK_MAX + 5


async def test_a_rare_request_reserves_no_block(clock: ManualClock) -> None:
    cluster = Cluster(clock, 1)
    for _ in range(50):
        await cluster.relays[0].grant("one")
        clock.ms += 3000
    assert cluster.shared.taken == 50


async def test_the_unused_rest_of_a_block_serves_no_later_request(
    clock: ManualClock,
) -> None:
    cluster = Cluster(clock, 1)
    for _ in range(4):
        await cluster.relays[0].grant("one")
    before = cluster.shared.statements
    clock.ms += round(GRANT_LIFE_S * 1000)
    await cluster.relays[0].grant("one")
    assert cluster.shared.statements == before + 1


async def test_a_pause_requested_from_one_relay_holds_for_the_others(
    clock: ManualClock,
) -> None:
    cluster = Cluster(clock, 2)
    await cluster.relays[0].pause(30)
    begun_ms = clock.ms
    await cluster.relays[1].grant("one")
    assert clock.ms - begun_ms >= 30_000


async def test_a_store_that_is_away_delays_a_request_until_it_is_back(clock: ManualClock) -> None:
    cluster = Cluster(clock, 1)
    cluster.shared.failures = 3
    await cluster.relays[0].grant("one")
    assert cluster.shared.statements == 4


def test_all_users_of_one_key_share_a_budget() -> None:
    first = budget.shared(Secret("a-key-of-the-tests"))
    assert budget.shared(Secret("a-key-of-the-tests")) is first
    assert budget.shared(Secret("another-key-of-them")) is not first
    assert budget.shared(Secret("a-key-of-the-tests"), ProcessBudgets()) is not first
