"""Places of an event's deliveries in the queues of their sinks."""

from relay.core.routing import Verdict
from relay.store import Store
from relay.store.events import AHEAD_MAX, Queued
from relay.store.selection import Selection
from tests.conftest import NOW_MS
from tests.store.conformance import OTHER, TAKES, accept, event, lease, settlement


async def queued(store: Store, event_id: str, sink: str = "sales") -> Queued | None:
    (record,) = await store.events.page(Selection(id=event_id), (), limit=1)
    places = await store.events.queued(record.seq)
    return next((each for each in places if each.sink == sink), None)


async def test_a_delivery_is_behind_those_of_its_sink_that_are_due_before_it(store: Store) -> None:
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    for number, name in enumerate("bcd", start=1):
        await accept(store, event(name, at_ms=NOW_MS + number))
    await accept(store, event("e", at_ms=NOW_MS + 9), verdicts=[TAKES, OTHER])
    assert await queued(store, "a") == Queued("sales", 0, is_more=False, of_key=0)
    assert await queued(store, "e") == Queued("sales", 4, is_more=False, of_key=0)
    assert await queued(store, "e", "crm") == Queued("crm", 1, is_more=False, of_key=0)


async def test_only_pending_deliveries_have_a_place_and_are_ahead(store: Store) -> None:
    for number, name in enumerate("abc"):
        await accept(store, event(name, at_ms=NOW_MS + number))
    (first, *_) = (await lease(store, now_ms=NOW_MS + 9, limit=1)).deliveries
    await store.settle(settlement(first))
    assert await queued(store, "a") is None
    assert await queued(store, "c") == Queued("sales", 1, is_more=False, of_key=0)


async def test_a_retry_is_behind_the_retries_that_are_due_before_it(store: Store) -> None:
    for number, name in enumerate("abc"):
        await accept(store, event(name, at_ms=NOW_MS + number))
    for delivery in (await lease(store, now_ms=NOW_MS + 9, limit=2)).deliveries:
        due_ms = NOW_MS + {"a": 200, "b": 100}[delivery.event.id]
        await store.settle(settlement(delivery, "retry", due_ms=due_ms))
    assert await queued(store, "a") == Queued("sales", 1, is_more=False, of_key=0)
    assert await queued(store, "b") == Queued("sales", 0, is_more=False, of_key=0)
    assert await queued(store, "c") == Queued("sales", 0, is_more=False, of_key=0)


async def test_an_ordered_delivery_counts_the_earlier_ones_of_its_key(store: Store) -> None:
    keyed = {
        key: Verdict("sales", "takes", "events and sources match", key=key) for key in ("k", "l")
    }
    for number, (name, key) in enumerate([("a", "k"), ("b", "l"), ("c", "k"), ("d", "k")]):
        await accept(store, event(name, at_ms=NOW_MS + number), verdicts=[keyed[key]])
    assert await queued(store, "a") == Queued("sales", 0, is_more=False, of_key=0)
    assert await queued(store, "b") == Queued("sales", 1, is_more=False, of_key=0)
    assert await queued(store, "c") == Queued("sales", 2, is_more=False, of_key=1)
    assert await queued(store, "d") == Queued("sales", 3, is_more=False, of_key=2)


def test_the_count_ends_at_its_limit() -> None:
    more = Queued.of("sales", AHEAD_MAX + 1, AHEAD_MAX + 1)
    assert more == Queued("sales", AHEAD_MAX, is_more=True, of_key=AHEAD_MAX)
    exact = Queued.of("sales", AHEAD_MAX, 0)
    assert exact == Queued("sales", AHEAD_MAX, is_more=False, of_key=0)
