"""A relay that has lost a sink settles nothing of it; a takeover waits for a settlement."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import cast
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.store import LeasedBatch, Store
from relay.store.postgres.fences import HISTORY, Fence
from relay.store.postgres.opening import open_store
from tests.conftest import ManualClock
from tests.store.conformance import OTHER, TAKES, accept, event, ids, lease, settlement
from tests.store.places import PostgresPlace
from tests.store.postgres.test_failures import until

_OWN = """
INSERT INTO relay.ownership (sink, holder, fence, expires_at)
VALUES ('sales', %s, 1, clock_timestamp() + interval '1 hour')
ON CONFLICT (sink) DO UPDATE SET holder = excluded.holder, fence = relay.ownership.fence + 1
"""


class Holder:
    """Fulfils `Fences` for a relay that believes to own all sinks, one of them with a fence."""

    def __init__(self, place: PostgresPlace) -> None:
        self._place = place
        self.id = uuid4()
        self.fences: dict[str, Fence] = {}
        self.refused: list[tuple[str, Fence]] = []

    def own(self) -> None:
        self._place.rows(_OWN, self.id)
        ((number, history),) = self._place.rows(f"SELECT fence, {HISTORY} FROM relay.ownership")
        self.fences["sales"] = Fence(self.id, history, number)

    def holds(self, _: str) -> bool:
        return True

    def fence(self, sink: str) -> Fence | None:
        return self.fences.get(sink)

    def lost(self, sink: str, fence: Fence) -> None:
        self.refused.append((sink, fence))


@asynccontextmanager
async def owned(place: PostgresPlace, clock: ManualClock) -> AsyncIterator[tuple[Store, Holder]]:
    holder = Holder(place)
    store = cast("Store", await open_store(place.settings(), clock=clock, fences=holder))
    try:
        holder.own()
        yield store, holder
    finally:
        await store.close()


def take_over(place: PostgresPlace) -> UUID:
    place.rows(_OWN, other := uuid4())
    return other


def statuses(place: PostgresPlace) -> dict[tuple[str, str], str]:
    sql = "SELECT id, sink, status FROM relay.deliveries JOIN relay.events ON seq = event"
    return {(event_id, sink): status for event_id, sink, status in place.rows(sql)}


async def test_an_owner_settles(postgres_place: PostgresPlace, clock: ManualClock) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"))
        await store.settle(*map(settlement, (await lease(store)).deliveries))
        assert statuses(postgres_place) == {("a", "sales"): "delivered"}
        assert holder.refused == []


async def test_a_settlement_under_a_stale_fence_changes_nothing(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"), verdicts=[TAKES, OTHER])
        taken = [*(await lease(store)).deliveries, *(await lease(store, "crm")).deliveries]
        stale = holder.fences["sales"]
        take_over(postgres_place)
        await store.settle(*map(settlement, taken))
        # Those of other sinks in the same statement are written.
        assert statuses(postgres_place) == {("a", "sales"): "pending", ("a", "crm"): "delivered"}
        assert postgres_place.rows("SELECT sink FROM relay.attempts") == [("crm",)]
        assert holder.refused == [("sales", stale)]


async def test_a_settlement_is_under_the_fence_of_its_lease(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"))
        (delivery,) = (await lease(store)).deliveries
        take_over(postgres_place)
        # This relay has it again, and what it sent before may have been sent by the other one.
        holder.own()
        await store.settle(settlement(delivery))
        assert statuses(postgres_place) == {("a", "sales"): "pending"}
        assert ids(await lease(store)) == ["a"]


async def test_an_expired_fence_settles_nothing(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"))
        taken = (await lease(store)).deliveries
        postgres_place.rows("UPDATE relay.ownership SET expires_at = clock_timestamp()")
        await store.settle(*map(settlement, taken))
        assert statuses(postgres_place) == {("a", "sales"): "pending"}
        assert len(holder.refused) == 1


async def test_a_fence_of_before_a_failover_settles_nothing(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"))
        async with postgres_place.open(clock) as only:
            taken = (await lease(only)).deliveries
        holder.fences["sales"] = holder.fences["sales"]._replace(history="0000FFFF")
        await store.settle(*map(settlement, taken))
        assert statuses(postgres_place) == {("a", "sales"): "pending"}


@pytest.mark.parametrize("cause", ["a takeover", "its expiry", "a failover"])
async def test_a_stale_fence_leases_nothing(
    postgres_place: PostgresPlace, clock: ManualClock, cause: str
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"))
        if cause == "a takeover":
            take_over(postgres_place)
        elif cause == "its expiry":
            postgres_place.rows("UPDATE relay.ownership SET expires_at = clock_timestamp()")
        else:
            holder.fences["sales"] = holder.fences["sales"]._replace(history="0000FFFF")
        assert await lease(store) == LeasedBatch((), None)
        assert holder.refused == [("sales", holder.fences["sales"])]


async def test_leases_of_one_acquisition_are_free_under_the_next_one(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owned(postgres_place, clock) as (store, holder):
        await accept(store, event("a"), event("b"))
        assert ids(await lease(store)) == ["a", "b"]
        # A failover lost the tail, and the numbers were given again.
        postgres_place.rows("UPDATE relay.deliveries SET due_at = due_at - 60000")
        holder.own()
        assert ids(await lease(store)) == ["a", "b"]


async def test_a_takeover_waits_for_a_settlement_under_way(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    server = postgres_place.server
    waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"

    def number_waiting() -> object:
        return server.execute(waiting)[0][0]

    async with owned(postgres_place, clock) as (store, _):
        await accept(store, event("a"))
        taken = (await lease(store)).deliveries
        with closing(psycopg.connect(server.dsn)) as other:
            table = f'"{postgres_place.schema}".deliveries'
            other.execute(f"SELECT 1 FROM {table} FOR UPDATE".encode())
            settling = asyncio.create_task(store.settle(*map(settlement, taken)))
            await until(lambda: number_waiting() == 1, what="the settlement waits for the row")
            taking = asyncio.create_task(asyncio.to_thread(take_over, postgres_place))
            await until(lambda: number_waiting() == 2, what="the takeover waits")
            other.rollback()
        await asyncio.gather(settling, taking)
        assert statuses(postgres_place) == {("a", "sales"): "delivered"}
