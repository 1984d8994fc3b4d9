"""The last hour by minute, and the speed of acknowledgements, from samples of the metrics."""

import pytest

from relay.core.minutes import MINUTE_MS, Minute, minute_of
from relay.telemetry.metrics import Metrics
from relay.telemetry.recent_counts import KEPT_MS, RecentCounts
from tests.conftest import NOW_MS, ManualClock

START_MS = minute_of(NOW_MS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["main", "second"], ["sales", "crm"])


@pytest.fixture
def recent(metrics: Metrics, clock: ManualClock) -> RecentCounts:
    return RecentCounts(metrics, clock)


def receive(metrics: Metrics, count: int = 1, *, source: str = "main") -> None:
    for _ in range(count):
        metrics.received(source, "lead.captured", "accepted")


def shown(recent: RecentCounts, since_ms: int, until_ms: int) -> list[tuple[object, ...]]:
    minutes = recent.minutes(since_ms, until_ms)
    assert minutes is not None
    return [(each.accepted, each.delivered, each.failed) for each in minutes]


def test_new_events_and_attempts_are_counted_in_the_minute_of_the_sample(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    receive(metrics, 3)
    receive(metrics, 2, source="second")
    metrics.received("main", "lead.captured", "duplicate")
    clock.ms += MINUTE_MS - 1
    recent.sample()
    metrics.attempted("sales", "delivered", 0.1)
    metrics.attempted("crm", "delivered", 0.1)
    for result in ("retry", "parked", "dead"):
        metrics.attempted("crm", result, 0.1)
    receive(metrics, 1)
    clock.ms += 1
    recent.sample()
    clock.ms += 2 * MINUTE_MS
    assert shown(recent, START_MS, clock.ms + 1) == [(5, 0, 0), (1, 2, 3), (0, 0, 0), (0, 0, 0)]


def test_counts_from_before_the_start_are_not_sampled(metrics: Metrics, clock: ManualClock) -> None:
    receive(metrics, 3)
    assert shown(RecentCounts(metrics, clock), START_MS, START_MS + 1) == [(0, 0, 0)]


def test_a_removed_sink_takes_no_count_along_and_a_new_one_begins_at_zero(
    metrics: Metrics, recent: RecentCounts
) -> None:
    for _ in range(3):
        metrics.attempted("sales", "delivered", 0.1)
    recent.sample()
    metrics.drop_sink("sales")
    metrics.attempted("crm", "delivered", 0.1)
    recent.sample()
    metrics.add_sink("sales")
    metrics.attempted("sales", "delivered", 0.1)
    assert shown(recent, START_MS, START_MS + 1) == [(0, 5, 0)]


def test_restored_minutes_go_on_with_the_samples(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    before_ms = START_MS - MINUTE_MS
    assert recent.minutes(before_ms, START_MS) is None
    receive(metrics, 1)
    recent.sample()
    recent.restore([Minute(before_ms, None, 4, 5), Minute(START_MS, 1, 1, 1)])
    receive(metrics, 2)
    assert shown(recent, before_ms, clock.ms + 1) == [(None, 4, 5), (4, 1, 1)]


def test_one_hour_is_kept(metrics: Metrics, recent: RecentCounts, clock: ManualClock) -> None:
    receive(metrics)
    recent.sample()
    clock.ms += KEPT_MS
    assert shown(recent, START_MS, clock.ms + 1) == [(1, 0, 0), *[(0, 0, 0)] * 60]
    clock.ms += MINUTE_MS
    assert recent.minutes(START_MS, clock.ms + 1) is None
    assert shown(recent, START_MS + MINUTE_MS, clock.ms + 1) == [(0, 0, 0)] * 61
    assert len(recent._minutes) == 2


def test_a_clock_that_is_set_back_counts_in_the_earlier_minute(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    receive(metrics, 2)
    clock.ms += 3 * MINUTE_MS
    recent.sample()
    clock.ms -= 2 * MINUTE_MS
    receive(metrics, 5)
    assert shown(recent, START_MS, clock.ms + 1) == [(0, 0, 0), (5, 0, 0)]
    clock.ms += 2 * MINUTE_MS
    assert shown(recent, START_MS, clock.ms + 1) == [(0, 0, 0), (5, 0, 0), (0, 0, 0), (2, 0, 0)]


def test_the_rate_is_of_the_last_minute(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    receive(metrics, 7)
    assert recent.rate().last_minute == 7
    clock.ms += 30_000
    receive(metrics, 2)
    assert recent.rate().last_minute == 9
    clock.ms += 31_000
    assert recent.rate().last_minute == 2


def test_the_durations_are_of_all_sources_in_the_last_minutes(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    assert (recent.rate().median_s, recent.rate().p99_s) == (None, None)
    for _ in range(98):
        metrics.acknowledged("main", 0.002)
    for _ in range(2):
        metrics.acknowledged("second", 0.4)
    rate = recent.rate()
    assert rate.median_s is not None
    assert rate.p99_s is not None
    assert 0.001 < rate.median_s <= 0.0025
    assert 0.25 < rate.p99_s <= 0.5
    clock.ms += 299_000
    metrics.drop_source("second")
    metrics.acknowledged("main", 60.0)
    assert recent.rate().median_s == pytest.approx(rate.median_s, rel=0.05)
    clock.ms += 2_000
    assert recent.rate().median_s == 10
    clock.ms += 300_000
    assert recent.rate().median_s is None


def test_a_source_that_was_removed_and_added_again_counts_from_zero(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    for _ in range(3):
        metrics.acknowledged("second", 0.4)
    recent.sample()
    clock.ms += 600_000
    assert recent.rate().median_s is None
    metrics.drop_source("second")
    metrics.add_source("second")
    metrics.acknowledged("second", 0.002)
    median_s = recent.rate().median_s
    assert median_s is not None
    assert median_s <= 0.0025


def test_the_memory_does_not_grow_with_the_questions(
    metrics: Metrics, recent: RecentCounts, clock: ManualClock
) -> None:
    for _ in range(1000):
        metrics.acknowledged("main", 0.002)
        clock.ms += 10
        assert recent.rate().median_s is not None
    assert len(recent._acks) == 11
    assert sum(sum(counts) for _, counts in recent._acks) == 1000
