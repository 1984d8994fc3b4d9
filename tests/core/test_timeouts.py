"""A deadline cancels its own task, once, and no other."""

import asyncio

import pytest

from relay.core import timeouts
from relay.core.clock import SystemClock
from relay.core.timeouts import Deadlines
from tests.conftest import ManualClock


@pytest.fixture(autouse=True)
def _quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "TICK_S", 0.002)


@pytest.fixture
async def deadlines(clock: ManualClock) -> Deadlines:
    return Deadlines(clock)


async def ticks() -> None:
    """Let a few ticks pass while the deadlines' clock stands still."""
    await asyncio.sleep(0.02)


async def hang(deadlines: Deadlines, seconds: float) -> str:
    try:
        with deadlines.within(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        return "late"
    return "never"


async def test_a_wait_beyond_the_deadline_ends_in_a_timeout(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    waiting = asyncio.create_task(hang(deadlines, 5))
    clock.ms += 4_999
    await ticks()
    assert not waiting.done()
    clock.ms += 5_000
    assert await asyncio.wait_for(waiting, 5) == "late"


async def test_another_error_during_the_cancellation_leaves_the_task_uncancelled(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    async def turned() -> int:
        try:
            with deadlines.within(5):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise LookupError from None
        except LookupError:
            pass
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    waiting = asyncio.create_task(turned())
    await ticks()
    clock.ms += 5_000
    assert await asyncio.wait_for(waiting, 5) == 0


async def test_only_late_tasks_are_cancelled(deadlines: Deadlines, clock: ManualClock) -> None:
    short = [asyncio.create_task(hang(deadlines, 1)) for _ in range(20)]
    long = [asyncio.create_task(hang(deadlines, 10)) for _ in range(20)]
    await ticks()
    clock.ms += 2_000
    assert await asyncio.wait_for(asyncio.gather(*short), 5) == ["late"] * 20
    assert not any(task.done() for task in long)
    clock.ms += 10_000
    assert await asyncio.wait_for(asyncio.gather(*long), 5) == ["late"] * 20


async def test_an_extended_deadline_restarts(deadlines: Deadlines, clock: ManualClock) -> None:
    with deadlines.within(1) as limit:
        clock.ms += 900
        limit.extend(1)
        clock.ms += 900
        await ticks()
    assert limit.at_s > clock.monotonic()


async def test_a_task_that_ends_in_time_is_never_cancelled(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    with deadlines.within(1):
        await asyncio.sleep(0)
    clock.ms += 10_000
    await ticks()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_after_a_timeout_the_task_is_no_longer_being_cancelled(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    clock.ms += 2_000
    waiting = asyncio.ensure_future(_hang_and_go_on(deadlines))
    await ticks()
    clock.ms += 2_000
    assert await asyncio.wait_for(waiting, 5) == ("late", 0)


async def test_another_error_passes_through(deadlines: Deadlines) -> None:
    with pytest.raises(LookupError), deadlines.within(1):
        raise LookupError


async def test_a_cancellation_from_outside_propagates(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    waiting = asyncio.create_task(hang(deadlines, 1))
    await ticks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    both = asyncio.create_task(hang(deadlines, 1))
    await asyncio.sleep(0)
    clock.ms += 2_000
    deadlines._tick()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both


async def test_no_timer_runs_without_a_deadline(deadlines: Deadlines) -> None:
    with deadlines.within(1):
        await ticks()
    await ticks()
    assert not deadlines._ticking
    with deadlines.within(1):
        assert deadlines._ticking


async def test_the_system_clock_works_too() -> None:
    assert await asyncio.wait_for(hang(Deadlines(SystemClock()), 0.01), 5) == "late"


async def test_a_nested_deadline_leaves_the_outer_one_untouched(
    deadlines: Deadlines, clock: ManualClock
) -> None:
    with deadlines.within(10):
        inner = None
        try:
            with deadlines.within(1):
                clock.ms += 2_000
                await asyncio.Event().wait()
        except TimeoutError:
            inner = "late"
        await asyncio.sleep(0)
    assert inner == "late"


async def _hang_and_go_on(deadlines: Deadlines) -> tuple[str, int]:
    outcome = await hang(deadlines, 1)
    await ticks()
    task = asyncio.current_task()
    assert task is not None
    return outcome, task.cancelling()
