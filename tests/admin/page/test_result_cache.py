"""Slow results are shown again for a while, quick ones never."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.exceptions import HTTPException

from relay.admin.page.result_cache import KEPT_MAX, RUNNING_MAX, CachedReads, ResultCache
from relay.core.errors import StoreError


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


def reader(clock: Clock, seconds: float) -> Callable[[], Awaitable[int]]:
    """A read that takes its time, and returns how often it ran."""
    count = 0

    async def read() -> int:
        nonlocal count
        count += 1
        clock.now_s += seconds
        return count

    return read


async def test_a_slow_result_is_shown_again_for_twenty_times_its_time() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 0.2)
    assert await slow.get("a", read) == 1
    clock.now_s += 3.9
    assert await slow.get("a", read) == 1
    assert await slow.get("b", read) == 2
    clock.now_s += 0.2
    assert await slow.get("a", read) == 3


async def test_a_visit_knows_when_an_older_result_is_read_anew() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 0.2)
    first, second, third = (CachedReads(slow, clock) for _ in range(3))
    assert await first.get("a", read) == 1
    assert first.again_ms is None
    clock.now_s += 1
    assert await second.get("a", read) == 1
    assert second.again_ms == pytest.approx(3001, abs=1)
    clock.now_s += 3.1
    assert second.again_ms == 1
    assert await third.get("a", read) == 2
    assert third.again_ms is None


async def test_a_quick_result_is_read_each_time() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 0.01)
    assert [await slow.get("a", read) for _ in range(3)] == [1, 2, 3]


async def test_only_the_latest_results_are_kept() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 1)
    for number in range(KEPT_MAX + 1):
        await slow.get(number, read)
    clock.now_s -= KEPT_MAX
    assert await slow.get(KEPT_MAX, read) == KEPT_MAX + 1
    assert await slow.get(0, read) == KEPT_MAX + 2


async def test_visitors_at_once_share_a_read_that_goes_on_without_them() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 0)
    visitors = [asyncio.create_task(slow.get("a", read)) for _ in range(3)]
    await asyncio.sleep(0)
    visitors[0].cancel()
    assert [await visitors[1], await visitors[2]] == [1, 1]


async def test_after_a_change_everything_is_read_anew() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 1)
    assert await slow.get("kept", read) == 1
    begun = asyncio.create_task(slow.get("under way", read))
    await asyncio.sleep(0)
    slow.forget()
    assert await slow.get("under way", read) == 3
    assert await begun == 2
    assert await slow.get("under way", read) == 3
    assert await slow.get("kept", read) == 4


async def test_too_many_reads_of_one_kind_are_refused_and_others_are_not() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 0)
    left = [asyncio.create_task(slow.get(number, forever)) for number in range(RUNNING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(HTTPException):
        await slow.get(RUNNING_MAX, read)
    assert await slow.get("of another type", read) == 1
    for each in left:
        each.cancel()


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_read_that_failed_is_repeated() -> None:
    clock = Clock()
    slow, read = ResultCache(clock), reader(clock, 1)

    async def fail() -> int:
        clock.now_s += 1
        raise StoreError("disk")

    with pytest.raises(StoreError):
        await slow.get("a", fail)
    assert await slow.get("a", read) == 1
