"""Erasures go on by themselves, at the relay that has its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.app import eraser
from relay.app.eraser import Eraser
from relay.core.errors import StoreUnavailable
from relay.store import Store
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.places import Place
from tests.store.test_personal_data import ANN, event

pytestmark = pytest.mark.servers


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with place.open(clock) as one:
        yield one


@asynccontextmanager
async def running(store: Store, has_turn: Callable[[], bool]) -> AsyncIterator[Eraser]:
    one = Eraser(
        store.personal_data,
        clock=ManualClock(),
        has_turn=has_turn,
        forget=lambda _: None,
        refetch=lambda: None,
        progressed=lambda: None,
    )
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_relay_that_has_the_turn_carries_out_what_another_one_ordered(
    store: Store,
) -> None:
    await accept(store, event("a"), event("b"))
    async with running(store, lambda: False) as one, running(store, lambda: True) as other:
        erasing = asyncio.create_task(one.erase(ANN))
        async with asyncio.timeout(20):
            while not erasing.done():
                other.wake()
                await asyncio.sleep(0.01)
        record = await erasing
    assert record.erasure is not None
    assert (record.erasure.events, record.ended_ms is None) == (2, False)


async def test_an_erasure_that_a_relay_has_left_is_found(store: Store) -> None:
    await accept(store, event("a"))
    number = await store.personal_data.order(ANN, now_ms=NOW_MS)
    async with running(store, lambda: True), asyncio.timeout(20):
        while (record := await store.personal_data.erasure(number)) is None or not record.ended_ms:
            await asyncio.sleep(0.01)
    assert record.erasure is not None
    assert record.erasure.events == 1


async def test_an_erasure_goes_on_after_its_request_was_cut_and_its_store_was_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser, "RETRY_S", (0.01,))
    monkeypatch.setattr(eraser, "WAIT_S", 0.05)
    await accept(store, event("a"))
    removal = store.personal_data._removal
    leases_made, is_away = removal.leases_made, True

    async def leases_made_later() -> Any:
        if is_away:
            raise StoreUnavailable("the database has not answered for 15 s")
        return await leases_made()

    monkeypatch.setattr(removal, "leases_made", leases_made_later)
    async with running(store, lambda: True) as one:
        async with asyncio.timeout(20):
            while (first := await one.erase(ANN)).erasure is None or not first.erasure.events:
                pass
        assert first.ended_ms is None
        is_away = False
        monkeypatch.setattr(eraser, "WAIT_S", 20)
        second = await one.erase(ANN)
    assert (second.id, second.ended_ms is None) == (first.id, False)
    assert second.erasure is not None
    assert second.erasure.events == 1
