"""Requests to the sender's API are shared out between the relays of a store."""

import asyncio

import pytest

from relay.core.clock import SystemClock
from relay.core.errors import StoreUnavailable
from relay.core.request_budget import BURST, SHARED_INTERVAL_S
from relay.store import Store
from tests.conftest import ManualClock
from tests.store.places import PostgresPlace

KEY = "key-of-the-api"
ELAPSED_MAX = 20
"""Requests that may have become free while a test has taken all others."""


async def take_all(*stores: Store, most: int = 8) -> int:
    """Take blocks from each in turn until there is none."""
    taken = 0
    while True:
        for store in stores:
            grant = await store.request_budgets.take(KEY, most=most)
            if not grant.requests:
                assert 0 < grant.wait_s <= SHARED_INTERVAL_S
                return taken
            assert grant.requests <= most
            taken += grant.requests


async def test_a_burst_can_be_taken_and_then_one_after_the_other(
    store: Store, clock: ManualClock
) -> None:
    taken = await take_all(store)
    assert BURST <= taken < BURST + ELAPSED_MAX
    grant = await store.request_budgets.take(KEY, most=8)
    clock.ms += 1000
    await asyncio.sleep(grant.wait_s)
    assert (await store.request_budgets.take(KEY, most=1)).requests == 1


async def test_each_key_has_its_own_budget(store: Store) -> None:
    await take_all(store)
    assert (await store.request_budgets.take("another-key", most=1)).requests == 1


async def test_relays_take_from_one_budget(postgres_place: PostgresPlace) -> None:
    clock = SystemClock()
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        assert BURST <= await take_all(one, other) < BURST + ELAPSED_MAX


async def test_blocks_taken_at_the_same_moment_are_different_ones(
    postgres_place: PostgresPlace,
) -> None:
    clock = SystemClock()
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        grants = await asyncio.gather(
            *(each.request_budgets.take(KEY, most=8) for each in (one, other) * 20)
        )
        assert BURST <= sum(grant.requests for grant in grants) < BURST + ELAPSED_MAX


async def test_a_pause_holds_for_all_relays_and_the_longest_one_counts(
    postgres_place: PostgresPlace,
) -> None:
    clock = SystemClock()
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        await one.request_budgets.take(KEY, most=1)
        await one.request_budgets.pause(KEY, 30)
        await one.request_budgets.pause(KEY, 1)
        grant = await other.request_budgets.take(KEY, most=8)
        assert grant.requests == 0
        assert 25 < grant.paused_s <= 30
        postgres_place.rows(
            "UPDATE relay.request_budgets SET paused_until = paused_until - interval '31 s'"
        )
        assert (await other.request_budgets.take(KEY, most=8)).requests == 8


async def test_unused_requests_return_to_the_budget_up_to_a_burst(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(SystemClock()) as store:
        await take_all(store)
        postgres_place.rows("UPDATE relay.request_budgets SET full_at = full_at - interval '1 d'")
        assert BURST <= await take_all(store) < BURST + ELAPSED_MAX


async def test_a_clock_of_the_server_that_was_set_back_stops_nothing(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(SystemClock()) as store:
        await take_all(store)
        postgres_place.rows("UPDATE relay.request_budgets SET full_at = full_at + interval '1 d'")
        assert (await store.request_budgets.take(KEY, most=1)).requests == 1


async def test_the_key_is_not_in_the_store(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(SystemClock()) as store:
        await store.request_budgets.take(KEY, most=1)
        ((key,),) = postgres_place.rows("SELECT key FROM relay.request_budgets")
        assert KEY.encode() not in key


async def test_without_a_request_nothing_is_written(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(SystemClock()):
        assert postgres_place.rows("SELECT 1 FROM relay.request_budgets") == []


async def test_a_database_failure_is_reported(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(SystemClock()) as store:
        postgres_place.rows("DROP TABLE relay.request_budgets")
        with pytest.raises(StoreUnavailable):
            await store.request_budgets.take(KEY, most=1)
