import asyncio

import pytest

from relay.core.clock import SystemClock
from relay.sandbox.schedule import Schedule
from tests.conftest import NOW_MS
from tests.sandbox.stepped_clock import SteppedClock

HOUR_MS = 3_600_000


async def test_actions_run_in_order_each_at_its_own_time() -> None:
    clock = SteppedClock(NOW_MS)
    schedule, seen = Schedule(clock), []
    for wait_s in (30, 10, 20):
        schedule.after(wait_s, lambda wait_s=wait_s: seen.append((wait_s, clock.now_ms() - NOW_MS)))  # type: ignore[misc]
    await schedule.run_until(NOW_MS + 25_000)
    assert seen == [(10, 10_000), (20, 20_000)]
    assert clock.now_ms() == NOW_MS + 25_000


async def test_an_action_may_schedule_others_on_the_way() -> None:
    clock = SteppedClock(NOW_MS)
    schedule, seen = Schedule(clock), []

    def again() -> None:
        seen.append(clock.now_ms() - NOW_MS)
        schedule.after(1, again)

    schedule.after(1, again)
    await schedule.run_until(NOW_MS + 3500)
    assert seen == [1000, 2000, 3000]


@pytest.mark.parametrize("speed", [1, 3, 7, 60, 1000, 0.1])
async def test_waits_are_divided_by_the_speed(speed: float) -> None:
    clock = SteppedClock(NOW_MS)
    schedule, seen = Schedule(clock, speed=speed), []
    schedule.after(3600, lambda: seen.append(clock.now_ms()))
    await schedule.run_until(NOW_MS + 100 * HOUR_MS)
    assert seen == [pytest.approx(NOW_MS + HOUR_MS / speed, abs=2)]


async def test_the_clock_waits_for_the_work_that_was_begun() -> None:
    clock = SteppedClock(NOW_MS)
    schedule, answered = Schedule(clock), asyncio.Event()
    ended: list[int] = []

    async def request() -> None:
        await answered.wait()
        ended.append(clock.now_ms() - NOW_MS)

    schedule.after(1, lambda: schedule.begin(request()))
    schedule.after(2, lambda: None)
    running = asyncio.create_task(schedule.run_until(NOW_MS + 5000))
    async with asyncio.timeout(5):
        while clock.now_ms() == NOW_MS:
            await asyncio.sleep(0)
    answered.set()
    await running
    assert ended == [1000]


async def test_a_change_of_speed_moves_what_is_due_later() -> None:
    clock = SteppedClock(NOW_MS)
    schedule, seen = Schedule(clock), []
    schedule.after(100, lambda: seen.append(clock.now_ms() - NOW_MS))
    await schedule.run_until(NOW_MS + 50_000)
    schedule.set_speed(10)
    await schedule.run_until(NOW_MS + HOUR_MS)
    assert seen == [55_000]


async def test_time_that_stood_still_is_added_to_the_waits() -> None:
    clock = SteppedClock(NOW_MS)
    schedule, seen = Schedule(clock), []
    schedule.after(10, lambda: seen.append(clock.now_ms() - NOW_MS))
    schedule.stop()
    await schedule.run_until(NOW_MS + HOUR_MS)
    assert seen == []
    schedule.resume()
    await schedule.run_until(NOW_MS + 2 * HOUR_MS)
    assert seen == [HOUR_MS + 10_000]


async def test_a_schedule_goes_on_where_it_was_written() -> None:
    clock = SteppedClock(NOW_MS)
    before = Schedule(clock, speed=60)
    due_ms = before.due_ms(600)
    await before.run_until(NOW_MS + 5000)
    written_ms = before.time_ms()
    clock.step_to(NOW_MS + HOUR_MS)
    schedule, seen = Schedule(clock, speed=60, start_ms=written_ms), []
    schedule.at(due_ms, lambda: seen.append(clock.now_ms() - NOW_MS))
    await schedule.run_until(NOW_MS + 2 * HOUR_MS)
    assert seen == [HOUR_MS + 5000]


async def test_a_cancelled_action_does_not_run() -> None:
    schedule, seen = Schedule(SteppedClock(NOW_MS)), []
    schedule.after(1, lambda: seen.append(1)).cancel()
    schedule.after(2, lambda: seen.append(2))
    await schedule.run_until(NOW_MS + 5000)
    assert seen == [2]


async def test_real_time_runs_the_actions_too() -> None:
    schedule, done = Schedule(SystemClock(), speed=1000), asyncio.Event()
    running = asyncio.create_task(schedule.run())
    schedule.after(20, done.set)
    async with asyncio.timeout(5):
        await done.wait()
    running.cancel()


async def test_an_error_of_the_work_ends_the_run() -> None:
    schedule = Schedule(SystemClock())

    async def broken() -> None:
        raise ZeroDivisionError

    schedule.after(0, lambda: schedule.begin(broken()))
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(5):
            await schedule.run()
