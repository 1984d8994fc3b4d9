"""When transactions start, on a loop whose time a test moves."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from relay.store.sqlite.commit_timer import (
    BATCH_MIN,
    INTERVAL_S,
    LATE_S,
    SKIPS_MAX,
    CommitTimer,
)


class Timer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Has the time and the timers of an event loop."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(at_s, callback)
        self._timers.append(timer)
        return timer

    def move_to(self, now_s: float) -> None:
        due = [timer for timer in self._timers if timer.at_s <= now_s]
        self._timers = [timer for timer in self._timers if timer.at_s > now_s]
        for timer in due:
            if not timer.is_cancelled:
                self.now_s = max(self.now_s, timer.at_s)
                timer.callback()
        self.now_s = now_s


class Writes:
    """Queues writes; a transaction takes all that wait, and no time."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.waiting = 0
        self.batches: list[tuple[float, int]] = []
        self._timer = CommitTimer(cast("Any", self.loop), self._write)
        self._began_s = self.loop.now_s

    def at(self, after_s: float, count: int = 1) -> None:
        """Queue writes at this time, in seconds after the first transaction."""
        self.loop.move_to(self._began_s + after_s)
        for _ in range(count):
            self.waiting += 1
            self._timer.schedule(self.waiting)

    def _write(self) -> None:
        self.batches.append((round(self.loop.now_s - self._began_s, 6), self.waiting))
        self.waiting = 0


@pytest.fixture
def writes() -> Writes:
    return Writes()


def test_a_write_after_a_pause_starts_a_transaction_at_once(writes: Writes) -> None:
    writes.at(0)
    writes.at(INTERVAL_S)
    writes.at(5.0)
    assert writes.batches == [(0, 1), (INTERVAL_S, 1), (5.0, 1)]


def test_writes_soon_after_a_transaction_share_the_next_one(writes: Writes) -> None:
    writes.at(0)
    writes.at(0.002)
    writes.at(0.006)
    writes.at(INTERVAL_S + 0.001)
    assert writes.batches == [(0, 1), (INTERVAL_S, 2)]


def test_enough_writes_do_not_wait(writes: Writes) -> None:
    writes.at(0)
    writes.at(0.003, BATCH_MIN)
    assert writes.batches == [(0, 1), (0.003, BATCH_MIN)]
    # The timer of the first of them starts nothing any more.
    writes.at(INTERVAL_S, 0)
    assert len(writes.batches) == 2


def test_writes_that_follow_each_other_steadily_keep_sharing(writes: Writes) -> None:
    for number in range(401):
        writes.at(number * 0.002)
    assert len(writes.batches) <= 401 / (BATCH_MIN - 1)
    assert max(size for _, size in writes.batches) == BATCH_MIN


@pytest.mark.parametrize("callers", [1, BATCH_MIN - 1])
def test_callers_that_wait_for_each_transaction_are_seldom_delayed(
    writes: Writes, callers: int
) -> None:
    waits = 0
    now_s = 0.0
    for _ in range(2000):
        writes.at(now_s, callers)
        if writes.waiting:
            waits += 1
            now_s += INTERVAL_S
            writes.loop.move_to(writes.loop.now_s + INTERVAL_S)
        now_s += LATE_S / 2
    # Here each of them may start a transaction of its own.
    assert 0 < waits <= 2000 * callers / SKIPS_MAX + 10


def test_a_late_write_ends_the_skipping(writes: Writes) -> None:
    writes.at(0)
    writes.at(0.001)
    writes.at(0.009)
    writes.at(0.010)
    # The wait from 0.001 on was in vain, so the write at 0.009 started at once.
    assert writes.batches[:3] == [(0, 1), (INTERVAL_S, 1), (0.009, 1)]
    writes.at(0.010 + LATE_S)
    writes.at(0.018)
    assert writes.batches[3] == (0.017, 2)
    writes.at(0.020 + LATE_S)
    writes.at(0.026)
    assert len(writes.batches) == 5
