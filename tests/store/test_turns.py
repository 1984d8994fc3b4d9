"""Turns of ordered deliveries: replays, erasures and withdrawals pass them on."""

from collections.abc import Sequence

import orjson
import pytest

from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store import Store
from relay.store.replays import PlannedDelivery, Replay
from relay.store.selection import Selection
from tests.conftest import NOW_MS
from tests.store.conformance import accept, event, ids, lease, settlement
from tests.store.erasing import erase
from tests.store.ordering import HOUR_MS, of_key
from tests.store.places import Place

ANN = "ann.lee@example.com"


async def settle_all(store: Store, *, now_ms: int = NOW_MS) -> list[str]:
    """Deliver all due events, lease by lease; return their ids in order."""
    taken: list[str] = []
    while found := (await lease(store, now_ms=now_ms)).deliveries:
        for each in found:
            await store.settle(settlement(each, at_ms=now_ms))
            taken.append(each.event.id)
    return taken


async def test_a_delivery_has_a_turn_only_while_it_is_pending(store: Store, place: Place) -> None:
    await accept(store, event("a"), event("b"), verdicts=[of_key("video 1")])
    assert len(place.rows("SELECT turn FROM relay.deliveries WHERE turn IS NOT NULL")) == 2
    first = (await lease(store)).deliveries[0]
    await store.settle(settlement(first, "dead"))
    held = place.rows("SELECT event FROM relay.deliveries WHERE turn IS NOT NULL")
    assert held == [(first.seq + 1,)]
    await settle_all(store)
    assert place.rows("SELECT turn FROM relay.deliveries WHERE turn IS NOT NULL") == []


async def test_a_held_delivery_has_no_due_time(store: Store) -> None:
    await accept(store, event("a"), event("b"), verdicts=[of_key("video 1")])
    due = {
        each.id: each.deliveries[0].due_ms
        for each in await store.events.page(Selection(), (), limit=9)
    }
    assert due == {"a": NOW_MS, "b": None}


def about(person: str, name: str) -> Event:
    made = event(name)
    body = orjson.dumps({"id": name, "event": made.kind, "data": {"email": person}})
    return Event(
        source="main",
        id=name,
        kind=made.kind,
        created_at=None,
        received_ms=NOW_MS,
        body=body,
        headers=b"",
    )


@pytest.mark.parametrize("erased", [["a"], ["b"], ["a", "b"], ["a", "c"], ["a", "b", "c"]])
async def test_an_erasure_releases_the_others_of_a_video(
    store: Store, place: Place, erased: Sequence[str]
) -> None:
    made = [about(ANN if name in erased else "bob@example.com", name) for name in "abcd"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    (head,) = (await lease(store)).deliveries
    later = settlement(head, "retry", due_ms=NOW_MS + HOUR_MS)
    await store.settle(later)
    await erase(store, ANN, now_ms=NOW_MS)
    rest = [name for name in "abcd" if name not in erased]
    now_ms = NOW_MS + (HOUR_MS if "a" in rest else 0)
    assert await settle_all(store, now_ms=now_ms) == rest
    assert place.rows("SELECT turn FROM relay.deliveries WHERE turn IS NOT NULL") == []


async def test_an_event_erased_in_flight_passes_its_turn_on_once(store: Store) -> None:
    made = [about(ANN if name == "a" else "bob@example.com", name) for name in "abc"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    (head,) = (await lease(store)).deliveries
    await erase(store, ANN, now_ms=NOW_MS)
    await store.settle(settlement(head))
    (following,) = (await lease(store)).deliveries
    assert (following.event.id, ids(await lease(store))) == ("b", [])
    await store.settle(settlement(following))
    assert ids(await lease(store)) == ["c"]


async def replayed(store: Store, *seqs: int, key: str | None = "video 1") -> Replay:
    until = await store.events.newest()
    begun = await store.replays.begin(Selection(), total=len(seqs), until=until, now_ms=NOW_MS)
    wanted = [PlannedDelivery(seq, "sales", key) for seq in seqs]
    return await store.replays.open(begun, wanted, cursor=max(seqs), now_ms=NOW_MS)


async def test_a_replay_is_in_order_whatever_the_status_of_its_events(store: Store) -> None:
    await accept(store, event("missed"), verdicts=[])
    await accept(store, *map(event, "abc"), verdicts=[of_key("video 1")])
    for result in ("delivered", "dead", "delivered"):
        (each,) = (await lease(store)).deliveries
        await store.settle(settlement(each, result))
    await replayed(store, 4, 2, 1, 3)
    for name in ("missed", "a", "b", "c"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_the_steps_of_a_replay_and_a_second_one_keep_one_at_a_time(
    store: Store,
) -> None:
    await accept(store, *map(event, "abcd"), verdicts=[of_key("video 1")])
    await settle_all(store)
    first = await replayed(store, 3)
    (head,) = (await lease(store)).deliveries
    wanted = [PlannedDelivery(4, "sales", "video 1")]
    await store.replays.open(first, wanted, cursor=4, now_ms=NOW_MS)
    await replayed(store, 1, 2)
    assert (head.event.id, ids(await lease(store))) == ("c", [])
    await store.settle(settlement(head))
    for name in ("a", "b", "d"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_removing_a_waiting_delivery_releases_no_other(store: Store) -> None:
    made = [about(ANN if name == "b" else "bob@example.com", name) for name in "abcd"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    await settle_all(store)
    await replayed(store, 4)
    (head,) = (await lease(store)).deliveries
    await replayed(store, 1, 2, 3)
    await erase(store, ANN, now_ms=NOW_MS)
    assert (head.event.id, ids(await lease(store))) == ("d", [])
    await store.settle(settlement(head))
    for name in ("a", "c"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_live_events_do_not_wait_for_replayed_ones_nor_they_for_them(
    store: Store,
) -> None:
    await accept(store, *map(event, "ab"), verdicts=[of_key("video 1")])
    await settle_all(store)
    await replayed(store, 1, 2)
    await accept(store, *map(event, "cd"), verdicts=[of_key("video 1")])
    assert sorted(ids(await lease(store))) == ["a", "c"]


async def test_a_withdrawn_replay_releases_another(store: Store, place: Place) -> None:
    await accept(store, event("missed"), verdicts=[])
    await accept(store, *map(event, "ab"), verdicts=[of_key("video 1")])
    await settle_all(store)
    cancelled = await replayed(store, 1, 2)
    await replayed(store, 3)
    await store.replays.end(cancelled, "cancelled", now_ms=NOW_MS)
    assert await settle_all(store) == ["b"]
    assert place.rows("SELECT event, status, turn FROM relay.deliveries ORDER BY event") == [
        (2, "delivered", None),
        (3, "delivered", None),
    ]


async def test_unordered_deliveries_of_a_replay_are_ordered_with_the_rest(
    store: Store,
) -> None:
    await accept(store, *map(event, "abc"), verdicts=[of_key(None)])
    await settle_all(store)
    begun = await replayed(store, 1, 2, key=None)
    wanted = [PlannedDelivery(seq, "sales", "video 1") for seq in (1, 2, 3)]
    await store.replays.open(begun, wanted, cursor=3, now_ms=NOW_MS)
    for name in "abc":
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_a_sink_that_becomes_ordered_orders_new_events(store: Store) -> None:
    await accept(store, *map(event, "ab"), verdicts=[of_key(None)])
    await accept(store, *map(event, "cd"), verdicts=[of_key("video 1")])
    await accept(store, *map(event, "ef"), verdicts=[of_key("viewer x")])
    await accept(store, event("g"), verdicts=[Verdict("sales", "takes", "")])
    assert sorted(ids(await lease(store))) == ["a", "b", "c", "e", "g"]


async def test_a_delivery_does_not_wait_for_the_ends_of_other_keys_lines(store: Store) -> None:
    for number in range(10):
        line = [event(f"{name}{number}", at_ms=NOW_MS - 100 + number) for name in "ab"]
        await accept(store, line[0], verdicts=[of_key("video 1")])
        await accept(store, line[1], verdicts=[of_key("video 2")])
        if number == 0:
            await accept(store, event("other", at_ms=NOW_MS - 99), verdicts=[of_key("video 3")])
    taken: list[str] = []
    while "other" not in taken:
        found = (await lease(store, limit=2)).deliveries
        await store.settle(*map(settlement, found))
        taken += [each.event.id for each in found]
    assert len(taken) <= 6
