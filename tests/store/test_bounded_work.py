"""Long work ends with what existed when it began, while events go on arriving."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.store import Store, stepwise_personal_data
from relay.store.audience import AudienceQuery, counting, rollup
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, lease, settlement
from tests.store.places import Place
from tests.store.test_audience import ANN, watched

DAY_MS = 86_400_000
_numbers = count()


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fewer events be counted in a step than arrive in it."""
    monkeypatch.setattr(counting, "STEP_ROWS", 2)
    for engine in ("sqlite", "postgres"):
        name = f"relay.store.{engine}.audience_tables._UNCOUNTED"
        module = __import__(f"relay.store.{engine}.audience_tables", fromlist=["_UNCOUNTED"])
        monkeypatch.setattr(name, module._UNCOUNTED.replace("LIMIT 100", "LIMIT 2"))


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with place.open(clock, payload_retention=Duration.parse("1d")) as one:
        yield one


async def arrive(store: Store, events: int = 5) -> None:
    await accept(store, *(watched(f"arrived {next(_numbers)}") for _ in range(events)))


def arriving(store: Store, monkeypatch: pytest.MonkeyPatch, audience: Any) -> None:
    """Let events arrive before each step that counts some."""
    name = "_count" if hasattr(audience, "_count") else "count"
    count_some = getattr(audience, name)

    async def count_after_arrival(*arguments: Any, **more: Any) -> Any:
        await arrive(store)
        return await count_some(*arguments, **more)

    monkeypatch.setattr(audience, name, count_after_arrival)


async def test_the_days_get_their_turn_while_events_arrive_faster_than_they_are_counted(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    await arrive(store, 9)
    async with asyncio.timeout(60):
        for _ in range(30):
            await store.audience.fill()
            await arrive(store)
    assert place.rows("SELECT 1 FROM relay.audience_days")


async def test_retention_removes_what_has_expired_while_events_arrive_faster_than_they_are_counted(
    store: Store, place: Place
) -> None:
    await arrive(store, 9)
    for each in (await lease(store)).deliveries:
        await store.settle(settlement(each, "delivered"))
    steps = 0
    async with asyncio.timeout(60):
        while await store.expire(now_ms=NOW_MS + 2 * DAY_MS):
            await arrive(store)
            steps += 1
    assert place.rows("SELECT count(body) FROM relay.events WHERE seq <= 9") == [(0,)]
    assert steps < 40


async def test_a_reconciliation_waits_only_for_the_count_of_the_events_there_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await arrive(store, 9)
    arriving(store, monkeypatch, store.audience)
    async with asyncio.timeout(60):
        known = await store.reconstructions.steps("main", "vid_1", [ANN])
    assert known[ANN]


async def test_the_audience_answers_while_events_arrive_faster_than_they_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "CATCH_UP_STEPS", 1000)
    await arrive(store, 9)
    arriving(store, monkeypatch, store.audience)
    async with asyncio.timeout(60):
        funnel = await store.audience.funnel(AudienceQuery(by="video"))
    assert funnel.groups


async def test_an_export_ends_while_events_of_the_person_arrive(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_personal_data, "SCAN_ROWS", 2)
    monkeypatch.setattr(stepwise_personal_data, "PART_STEPS", 1)
    await arrive(store, 9)
    after, found = None, 0
    async with asyncio.timeout(60):
        while True:
            part = await store.personal_data.records(ANN, after=after)
            found += len(part.events)
            if part.next is None:
                break
            after = part.next
            await arrive(store)
    # The last step may look a little further.
    assert 9 <= found < 14
