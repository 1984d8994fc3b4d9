"""Retention beside other relays: one step at a time, and nothing that a replay is opening."""

from collections.abc import AsyncIterator

import pytest

from relay.store import Store
from relay.store.postgres.opening import open_store
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, lease
from tests.store.places import PostgresPlace
from tests.store.postgres.test_audience import named, transaction
from tests.store.test_retention import BODY_DAYS, DAY_MS, ID_DAYS, opened, settle_all, sweep

_OPEN = "UPDATE relay.deliveries SET status = 'pending', due_at = 0, tries = 0, attempts = 0"


@pytest.fixture
async def store(postgres_place: PostgresPlace, clock: ManualClock) -> AsyncIterator[Store]:
    async with opened(postgres_place, clock) as one:
        yield one


@pytest.mark.parametrize("days", [BODY_DAYS + 1, ID_DAYS + 1])
async def test_an_event_that_a_replay_is_opening_stays(
    store: Store, postgres_place: PostgresPlace, days: int
) -> None:
    await accept(store, event("a"), event("b"))
    await settle_all(store)
    with transaction(postgres_place) as replay:
        # As a replay does.
        replay.execute(named(postgres_place, "SELECT 1 FROM relay.events WHERE id = 'a' FOR SHARE"))
        replay.execute(named(postgres_place, f"{_OPEN} WHERE event = 1"))
        await sweep(store, days=days)
        assert postgres_place.rows("SELECT id FROM relay.events WHERE body IS NOT NULL") == [("a",)]
    await sweep(store, days=days)
    (delivery,) = (await lease(store, now_ms=NOW_MS + days * DAY_MS)).deliveries
    assert delivery.event == event("a")
    assert postgres_place.rows("SELECT answer FROM relay.attempts WHERE event = 1") == [
        ("an answer",)
    ]


async def test_a_member_leaves_a_step_to_the_one_whose_turn_it_is(
    store: Store, postgres_place: PostgresPlace
) -> None:
    await accept(store, event("a"), verdicts=[])
    await sweep(store, days=1)
    with transaction(postgres_place) as other:
        other.execute(
            named(postgres_place, "SELECT 1 FROM relay.state WHERE name = 'retention' FOR UPDATE")
        )
        assert await sweep(store, days=BODY_DAYS + 1) == 1
        assert postgres_place.rows("SELECT count(body) FROM relay.events") == [(1,)]
    await sweep(store, days=BODY_DAYS + 1)
    assert postgres_place.rows("SELECT count(body) FROM relay.events") == [(0,)]


async def test_a_member_that_does_not_own_maintenance_removes_nothing(
    store: Store, postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    await accept(store, event("a"), verdicts=[])
    late_ms = NOW_MS + (BODY_DAYS + 1) * DAY_MS
    other = await open_store(postgres_place.settings(), clock=clock)
    try:
        assert not await other.expire(now_ms=late_ms)
        assert postgres_place.rows("SELECT count(body) FROM relay.events") == [(1,)]
    finally:
        await other.close()
    await sweep(store, days=BODY_DAYS + 1)
    assert postgres_place.rows("SELECT count(body) FROM relay.events") == [(0,)]
