"""Requests of one key stay below the service's limit, and its users take turns."""

import asyncio
from collections import Counter

import pytest

from relay.core.config_values import Secret
from relay.core.request_budget import BURST, PER_MINUTE, ProcessBudgets
from relay.video_service.api import budget
from relay.video_service.api.budget import Budget
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


def test_all_users_of_one_key_share_a_budget() -> None:
    first = budget.shared(Secret("a-key-of-the-tests"))
    assert budget.shared(Secret("a-key-of-the-tests")) is first
    assert budget.shared(Secret("another-key-of-them")) is not first
