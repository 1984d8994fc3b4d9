"""Due times brought forward while the store is at work: it ends, and no lease waits for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest

from relay.store import Store
from relay.store.postgres.store import PostgresStore
from relay.store.replays import Mark, PlannedDelivery
from relay.store.selection import Selection
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, ids, lease, settlement
from tests.store.ordering import HOUR_MS, of_key
from tests.store.places import Place

LATE = 2_500
"""Deliveries that take several steps."""

ENDS_S = 20.0


async def bring_all_forward(store: Store) -> int:
    async with asyncio.timeout(ENDS_S):
        return await store.bring_forward("sales", beyond_ms=NOW_MS, to_ms=NOW_MS, now_ms=NOW_MS)


@contextmanager
def after_each_step(
    store: Any, arrive: Callable[[int], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let something arrive after each write of the walk: its number is passed."""
    if isinstance(store, PostgresStore):
        queue, name = store._shared.background, "run"
    else:
        queue, name = store._shared.writer, "transact"
    write, numbers = getattr(queue, name), count(1)

    is_arriving = False

    async def followed(*arguments: Any) -> Any:
        nonlocal is_arriving
        result = await write(*arguments)
        if not is_arriving:
            is_arriving = True
            await arrive(next(numbers))
            is_arriving = False
        return result

    with monkeypatch.context() as patch:
        patch.setattr(queue, name, followed)
        yield


async def test_late_deliveries_are_brought_forward_although_events_keep_arriving(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.open(clock) as store:

        async def arrive(number: int) -> None:
            await accept(store, event(f"new {number}", at_ms=NOW_MS + number))

        # Two at each time, so that steps end between two of the same.
        late = [event(f"e{number}", at_ms=NOW_MS + 9000 + number // 2) for number in range(LATE)]
        await accept(store, *late)
        with after_each_step(store, arrive, monkeypatch):
            assert await bring_all_forward(store) == LATE
        due = place.rows(
            "SELECT count(*) FROM relay.deliveries JOIN relay.events ON seq = event "
            "WHERE due_at = %s AND received_at >= %s",
            NOW_MS,
            NOW_MS + 9000,
        )
        assert due == [(LATE,)]


async def test_late_deliveries_of_a_replay_that_goes_on_are_brought_forward(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.open(clock) as store:
        await accept(store, *(event(f"e{number}") for number in range(LATE)))
        while found := (await lease(store)).deliveries:
            await store.settle(*map(settlement, found))
        replay = await store.replays.begin(
            Selection(), total=LATE, until=Mark(LATE, LATE), now_ms=NOW_MS
        )
        seqs = [seq for (seq,) in place.rows("SELECT seq FROM relay.events ORDER BY seq")]

        async def open_some(seqs: Sequence[int], due_ms: int) -> None:
            planned = [PlannedDelivery(seq, "sales", None) for seq in seqs]
            await store.replays.open(replay, planned, cursor=0, now_ms=due_ms)

        await open_some(seqs[:2200], NOW_MS + HOUR_MS)
        rest = iter(seqs[2200:])

        async def arrive(number: int) -> None:
            await open_some([next(rest)], NOW_MS + number)

        with after_each_step(store, arrive, monkeypatch):
            assert await bring_all_forward(store) >= 2200
        late = "SELECT count(*) FROM relay.deliveries WHERE due_at >= %s"
        assert place.rows(late, NOW_MS + HOUR_MS) == [(0,)]


async def test_a_late_delivery_that_gets_its_turn_meanwhile_is_brought_forward(
    place: Place, clock: ManualClock
) -> None:
    async with place.open(clock) as store:
        await accept(store, event("first"), verdicts=[of_key("video 1")])
        await accept(store, event("next", at_ms=NOW_MS + 9000), verdicts=[of_key("video 1")])
        (first,) = (await lease(store)).deliveries
        brought = asyncio.create_task(bring_all_forward(store))
        await store.settle(settlement(first))
        await brought
        assert ids(await lease(store)) == ["next"]


@asynccontextmanager
async def others_at_work(store: Any) -> AsyncIterator[None]:
    """Keep every connection busy that is not for dispatching or acceptances."""
    end = threading.Event()
    shared = store._shared
    busy = [shared.reader, shared.searcher, shared.pager]
    if isinstance(store, PostgresStore):
        busy = [each for each in busy for _ in range(8)] + [shared.background]
    waiting = [asyncio.create_task(each.run(lambda _: end.wait(ENDS_S))) for each in busy]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        end.set()
        await asyncio.gather(*waiting)


async def test_no_lease_or_settlement_waits_for_what_operators_have_begun(
    place: Place, clock: ManualClock
) -> None:
    async with place.open(clock) as store:
        await accept(store, event("a"))
        async with others_at_work(store), asyncio.timeout(ENDS_S / 2):
            assert await store.paused_sinks.all() == {}
            found = await lease(store)
            await store.settle(*map(settlement, found.deliveries))
            await store.reclaim("sales")
            assert ids(found) == ["a"]
