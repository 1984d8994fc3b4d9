"""The speed of acknowledgements, from samples of the metrics."""

import pytest

from relay.telemetry.ack_times import AckTimes
from relay.telemetry.metrics import Metrics
from tests.conftest import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["main", "second"], ["sales", "crm"])


@pytest.fixture
def times(metrics: Metrics, clock: ManualClock) -> AckTimes:
    return AckTimes(metrics, clock)


def test_the_durations_are_of_all_sources_in_the_last_minutes(
    metrics: Metrics, times: AckTimes, clock: ManualClock
) -> None:
    assert (times.quantiles().median_s, times.quantiles().p99_s) == (None, None)
    for _ in range(98):
        metrics.acknowledged("main", 0.002)
    for _ in range(2):
        metrics.acknowledged("second", 0.4)
    found = times.quantiles()
    assert found.median_s is not None
    assert found.p99_s is not None
    assert 0.001 < found.median_s <= 0.0025
    assert 0.25 < found.p99_s <= 0.5
    clock.ms += 299_000
    metrics.drop_source("second")
    metrics.acknowledged("main", 60.0)
    assert times.quantiles().median_s == pytest.approx(found.median_s, rel=0.05)
    clock.ms += 2_000
    assert times.quantiles().median_s == 10
    clock.ms += 300_000
    assert times.quantiles().median_s is None


def test_a_source_that_was_removed_and_added_again_counts_from_zero(
    metrics: Metrics, times: AckTimes, clock: ManualClock
) -> None:
    for _ in range(3):
        metrics.acknowledged("second", 0.4)
    times.sample()
    clock.ms += 600_000
    assert times.quantiles().median_s is None
    metrics.drop_source("second")
    metrics.add_source("second")
    metrics.acknowledged("second", 0.002)
    median_s = times.quantiles().median_s
    assert median_s is not None
    assert median_s <= 0.0025


def test_the_memory_does_not_grow_with_the_questions(
    metrics: Metrics, times: AckTimes, clock: ManualClock
) -> None:
    for _ in range(1000):
        metrics.acknowledged("main", 0.002)
        clock.ms += 10
        assert times.quantiles().median_s is not None
    assert len(times._samples) == 11
    assert sum(sum(counts) for _, counts in times._samples) == 1000
