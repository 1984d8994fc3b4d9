"""Whether the relay is ready: what its acceptances met, and what a probe meets otherwise."""

import asyncio
from typing import Any, cast

import pytest

from relay.admin.readiness import SIZE_MIN, Readiness
from relay.core.acceptance import AcceptanceHealth
from relay.core.errors import StoreFull, StoreUnavailable
from tests.conftest import ManualClock

REFUSED = ["the store accepts no events"]
FULL = ["the store is short of free space"]


class Probed:
    """A store with only a `probe`."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.error: Exception | None = None

    async def probe(self, *, size: int) -> None:
        self.sizes.append(size)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


class Scene:
    def __init__(self) -> None:
        self.store = Probed()
        self.clock = ManualClock()
        self.health = AcceptanceHealth(self.clock)
        self.readiness = Readiness(
            cast("Any", self.store), self.clock, self.health, draining=lambda: False
        )

    async def problems(self, *, after_ms: int = 0) -> list[str]:
        self.clock.ms += after_ms
        return await self.readiness.problems()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_caller_that_asks_while_a_probe_ends_gets_an_answer(scene: Scene) -> None:
    async def ask(moments: int) -> list[str]:
        for _ in range(moments):
            await asyncio.sleep(0)
        return await scene.problems()

    assert await asyncio.gather(*(ask(moments) for moments in range(20))) == [[]] * 20
    assert len(scene.store.sizes) == 1


async def test_nothing_is_probed_while_events_are_accepted(scene: Scene) -> None:
    for _ in range(50):
        scene.health.succeed()
        assert await scene.problems(after_ms=900) == []
    assert scene.store.sizes == []


async def test_an_idle_relay_is_probed_once_a_second_at_most(scene: Scene) -> None:
    for _ in range(100):
        assert await scene.problems(after_ms=100) == []
    assert 9 <= len(scene.store.sizes) <= 10


async def test_a_relay_is_not_ready_between_a_refusal_and_the_next_probe(scene: Scene) -> None:
    scene.store.error = StoreFull("no room")
    assert await scene.problems() == FULL
    for _ in range(9):
        assert await scene.problems(after_ms=100) == FULL
    assert len(scene.store.sizes) == 1
    scene.store.error = None
    assert await scene.problems(after_ms=100) == []
    assert len(scene.store.sizes) == 2


async def test_refusals_date_from_the_first_one_since_a_success(scene: Scene) -> None:
    scene.store.error = StoreFull("no room")
    begun_ms = scene.clock.ms
    for _ in range(5):
        assert await scene.problems(after_ms=1000) == FULL
    assert scene.readiness.since_ms == begun_ms + 1000
    scene.store.error = None
    assert await scene.problems(after_ms=1000) == []
    assert scene.readiness.since_ms is None


async def test_a_refusal_right_after_a_good_probe_counts(scene: Scene) -> None:
    assert await scene.problems() == []
    scene.health.fail(StoreUnavailable("not written: 42703"), 700)
    assert await scene.problems(after_ms=500) == REFUSED
    assert len(scene.store.sizes) == 1


async def test_a_good_probe_clears_the_refusal_of_one_event(scene: Scene) -> None:
    scene.health.fail(StoreUnavailable("not written: 22021"), 700)
    assert await scene.problems() == []
    assert scene.health.failure is None


async def test_an_accepted_event_clears_a_refusal_without_a_probe(scene: Scene) -> None:
    scene.health.fail(StoreFull("no room"), 700)
    scene.health.succeed()
    assert await scene.problems() == []
    assert scene.store.sizes == []


async def test_a_probe_is_as_large_as_what_was_refused(scene: Scene) -> None:
    scene.store.error = StoreFull("no room")
    scene.health.fail(StoreFull("no room"), 50_000)
    scene.health.fail(StoreFull("no room"), 700)
    assert await scene.problems() == FULL
    scene.store.error = None
    assert await scene.problems(after_ms=1000) == []
    assert await scene.problems(after_ms=1000) == []
    assert scene.store.sizes == [50_000, 50_000, SIZE_MIN]


async def test_a_bug_of_the_probe_is_no_readiness(scene: Scene) -> None:
    scene.store.error = KeyError()
    with pytest.raises(KeyError):
        await scene.problems()
