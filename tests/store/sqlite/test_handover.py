"""The store leases the deliveries of a new event, and offers them to their dispatchers."""

import asyncio
from collections import defaultdict

import pytest
from msgspec.structs import replace

from relay.core.delivery import Delivery
from relay.core.event import Outcome
from relay.core.routing import Verdict
from relay.store.sqlite import id_periods
from relay.store.sqlite.handover import hand_over
from relay.store.sqlite.store import SqliteStore
from tests.store.conformance import FAILS, OTHER, TAKES, event, ids, lease

ORDERED = Verdict("orders", "takes", "events and sources match", key="video one")


class Offers:
    """Takes what is offered, or declines all of it."""

    def __init__(self, store: SqliteStore, *, takes: bool = True) -> None:
        self._store = store
        self._takes = takes
        self.seen: list[Delivery] = []
        self.steps: list[str] = []

    def __call__(self, delivery: Delivery) -> bool:
        assert self._store.is_leased(delivery.sink, delivery.seq)
        self.seen.append(delivery)
        self.steps.append("offer")
        return self._takes

    def stored(self, outcome: Outcome) -> None:
        self.steps.append(outcome)


async def test_a_taken_delivery_is_the_one_that_a_lease_would_return(store: SqliteStore) -> None:
    offers = Offers(store)
    new = replace(event("a"), headers=b"x-a: b\r\n", created_at="2026-11-02")
    await store.accept(new, [TAKES, OTHER], offers.stored, offers)
    assert [each.sink for each in offers.seen] == ["sales", "crm"]
    assert (await lease(store)).deliveries == ()
    store.release(offers.seen)
    leased = (*(await lease(store)).deliveries, *(await lease(store, "crm")).deliveries)
    assert list(leased) == offers.seen


async def test_a_declined_delivery_is_due_at_once(store: SqliteStore) -> None:
    offers = Offers(store, takes=False)
    await store.accept(event("a"), [TAKES], offers.stored, offers)
    assert not store.is_leased("sales", 1)
    assert ids(await lease(store)) == ["a"]


async def test_offers_come_before_the_outcome_and_only_for_a_new_event(store: SqliteStore) -> None:
    offers = Offers(store)
    for new in (event("a", seed=1), event("a", seed=1), event("a", seed=2)):
        await store.accept(new, [TAKES], offers.stored, offers)
    assert offers.steps == ["offer", "accepted", "duplicate", "conflict"]


async def test_dead_letters_and_ordered_deliveries_are_not_offered(store: SqliteStore) -> None:
    offers = Offers(store)
    await store.accept(event("a"), [FAILS, ORDERED, OTHER], offers.stored, offers)
    assert [each.sink for each in offers.seen] == ["crm"]
    assert ids(await lease(store, "orders")) == ["a"]


@pytest.mark.parametrize("last", [0, id_periods.SIZE - 3])
async def test_deliveries_of_one_transaction_are_offered_with_their_own_numbers(
    store: SqliteStore, last: int
) -> None:
    store.reconstructions._acceptance._last = last
    offers = Offers(store)
    names = ["a", "b", "a", "c"]
    accepts = [store.accept(event(name), [TAKES], offers.stored, offers) for name in names]
    await asyncio.gather(*accepts)
    store.release(offers.seen)
    leased = (await lease(store)).deliveries
    assert [each.event.id for each in offers.seen] == ["a", "b", "c"]
    assert list(leased) == offers.seen


def test_a_delivery_that_a_lease_has_found_meanwhile_is_not_offered() -> None:
    leased: defaultdict[str, set[int]] = defaultdict(set)
    leased["sales"].add(7)
    offered: list[Delivery] = []

    def take(delivery: Delivery) -> bool:
        offered.append(delivery)
        return True

    hand_over(leased, 7, event("a"), [TAKES, OTHER], take)
    assert [each.sink for each in offered] == ["crm"]
    assert leased == {"sales": {7}, "crm": {7}}
