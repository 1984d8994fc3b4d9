"""Runs the conformance suite on every engine, and through PgBouncer."""

import random
from collections import Counter

import pytest

from relay.core.delivery import Delivery, Result
from relay.store import Store
from tests.conftest import NOW_MS, ManualClock
from tests.store import conformance, ordering
from tests.store.conformance import FAILS, OTHER, TAKES, Shelf, accept, event, lease, settlement
from tests.store.conftest import of_engine
from tests.store.places import Place


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.long),
        pytest.param("pooled", marks=pytest.mark.long),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Return a place on each engine, and one behind PgBouncer, in turn."""
    return of_engine(request, request.param)


@pytest.fixture
def shelf(place: Place, clock: ManualClock) -> Shelf:
    async def deliveries() -> dict[tuple[str, str, str], tuple[str, str | None]]:
        found = place.rows(
            "SELECT source, id, sink, status, reason "
            "FROM relay.deliveries JOIN relay.events ON seq = event"
        )
        return {row[:3]: row[3:] for row in found}

    async def attempts() -> list[tuple[str, str, str]]:
        found = place.rows(
            "SELECT id, sink, result FROM relay.attempts JOIN relay.events ON seq = event"
        )
        return [(event_id, sink, result) for event_id, sink, result in found]

    async def unreadable() -> int:
        return int(place.rows("SELECT count(*) FROM relay.unreadable")[0][0])

    return Shelf(lambda: place.open(clock), clock, deliveries, attempts, unreadable)


class TestAccepting(conformance.Accepting):
    pass


class TestOffering(conformance.Offering):
    pass


class TestLeasing(conformance.Leasing):
    pass


class TestSettling(conformance.Settling):
    pass


class TestCounting(conformance.Counting):
    pass


class TestOrdering(ordering.Ordering):
    pass


class Walk:
    """Random steps, and the deliveries that they hold."""

    RESULTS: tuple[Result, ...] = ("delivered", "retry", "parked", "dead")

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store = store
        self.random = dice
        self.now_ms = NOW_MS
        self.held: dict[tuple[int, str], Delivery] = {}
        self.settled: dict[tuple[int, str], Delivery] = {}

    async def step(self) -> None:
        steps = (
            self.arrive,
            self.arrive,
            self.take,
            self.settle,
            self.settle,
            self.late,
            self.give,
        )
        await self.random.choice(steps)()
        self.now_ms += self.random.randrange(2000)

    async def arrive(self) -> None:
        verdicts = self.random.choice([[TAKES], [OTHER], [TAKES, OTHER], [FAILS, OTHER], []])
        numbers = [self.random.randrange(60) for _ in range(self.random.randrange(1, 5))]
        events = (event(f"e{number}", at_ms=self.now_ms) for number in numbers)
        await accept(self.store, *events, verdicts=verdicts)

    async def take(self) -> None:
        sink, limit = self.random.choice(["sales", "crm"]), self.random.randrange(1, 8)
        found = await lease(self.store, sink, now_ms=self.now_ms, limit=limit)
        new = {(each.seq, each.sink): each for each in found.deliveries}
        assert not new.keys() & self.held.keys()
        self.held |= new

    async def settle(self) -> None:
        if self.held:
            key = self.random.choice(sorted(self.held))
            self.settled[key] = self.held.pop(key)
            await self._settle(self.settled[key])

    async def late(self) -> None:
        """Settle a delivery again, which may have changed since."""
        if keys := sorted(self.settled.keys() - self.held.keys()):
            await self._settle(self.settled[self.random.choice(keys)])

    async def give(self) -> None:
        if self.held:
            self.store.release([self.held.popitem()[1]])

    async def _settle(self, delivery: Delivery) -> None:
        due_ms = self.now_ms + self.random.randrange(5000)
        result = self.random.choice(self.RESULTS)
        await self.store.settle(settlement(delivery, result, due_ms=due_ms, at_ms=self.now_ms))


@pytest.mark.parametrize("seed", range(6))
async def test_the_tallies_equal_a_count_after_any_walk(shelf: Shelf, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(3):
        async with shelf.open() as store:
            walk = Walk(store, dice)
            for _ in range(60):
                await walk.step()
            counted = Counter(
                (sink, status) for (_, _, sink), (status, _) in (await shelf.deliveries()).items()
            )
            backlogs = await store.backlogs()
            for sink in ("sales", "crm"):
                assert backlogs[sink].pending == counted[sink, "pending"]
                assert backlogs[sink].dead == counted[sink, "dead"]
