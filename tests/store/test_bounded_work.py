"""Long work ends with what existed when it began, while events go on arriving."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.store import Store, personal_data_export
from relay.store.audience import AudienceQuery, counting, rollup
from relay.store.audience.days import Day, Key, View, days_of
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, lease, settlement
from tests.store.erasing import erase
from tests.store.places import Place, PostgresPlace
from tests.store.test_audience import ANN, BOB, BY_VIDEO, fill, opened, people_of, watched
from tests.store.test_audience_days import both, questions

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


@contextmanager
def counting_days(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Awaitable[None]]]:
    """Hold the count of days within the block; what is passed waits until it has begun."""
    begun, goes_on = threading.Event(), threading.Event()

    def held(views: Iterable[View]) -> Mapping[Key, Day]:
        days = days_of(views)
        begun.set()
        assert goes_on.wait(60)
        return days

    async def has_begun() -> None:
        async with asyncio.timeout(60):
            while not begun.is_set():
                await asyncio.sleep(0.01)

    monkeypatch.setattr(rollup, "days_of", held)
    try:
        yield has_begun
    finally:
        goes_on.set()


async def _renumber(place: PostgresPlace) -> None:
    """Take a person's number and give a new one, as an erasure and a return do."""
    place.rows("DELETE FROM relay.viewers WHERE number = (SELECT min(number) FROM relay.viewers)")
    place.rows(
        "INSERT INTO relay.viewers (person) SELECT DISTINCT person FROM relay.audience AS a"
        " WHERE NOT EXISTS (SELECT 1 FROM relay.viewers AS v WHERE v.person = a.person)"
    )


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


async def test_other_work_goes_on_while_days_are_read_and_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    await arrive(store, 9)
    with counting_days(monkeypatch) as has_begun:
        filling = asyncio.create_task(fill(store))
        await has_begun()
        async with asyncio.timeout(10):
            await store.paused_sinks.pause("any", now_ms=NOW_MS)
    await filling


@pytest.mark.parametrize("is_first", [True, False], ids=["views removed", "person forgotten"])
async def test_days_leave_out_what_an_erasure_removes_while_they_are_counted(
    postgres_place: PostgresPlace,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_first: bool,
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    async with opened(postgres_place, clock) as one, opened(postgres_place, clock) as other:
        await accept(one, watched("a"), watched("b", BOB))
        await one.audience.count()
        erased = erase(other, ANN, now_ms=NOW_MS) if is_first else _renumber(postgres_place)
        with counting_days(monkeypatch) as has_begun:
            filling = asyncio.create_task(fill(one))
            await has_begun()
            await erased
        await filling
        assert people_of(await one.audience.funnel(BY_VIDEO)) == {"started": 1 if is_first else 2}
        await accept(one, watched("c"), watched("d", BOB))
        await fill(one)
        assert people_of(await one.audience.funnel(BY_VIDEO)) == {"started": 2}
        for question in questions(Random(3)):
            answer, expected = await both(one, question)
            assert answer == expected, question


async def test_a_batch_ends_with_as_many_days_as_a_transaction_takes(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    monkeypatch.setattr(rollup, "PART_ROWS", 2)
    monkeypatch.setattr(rollup, "DAYS_MAX", 4)
    events = (watched(f"e{number}", at_ms=NOW_MS + number * DAY_MS) for number in range(12))
    await accept(store, *events)
    while await store.audience.count():
        pass
    written = []
    for _ in range(3):
        await store.audience.fill()
        written.append(place.rows("SELECT count(*) FROM relay.audience_days"))
    assert written == [[(4,)], [(8,)], [(12,)]]
    await fill(store)
    for question in questions(Random(4)):
        answer, expected = await both(store, question)
        assert answer == expected, question


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
    monkeypatch.setattr(personal_data_export, "SCAN_ROWS", 2)
    monkeypatch.setattr(personal_data_export, "PART_STEPS", 1)
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
