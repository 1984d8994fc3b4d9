"""The relay's own histogram is read as Prometheus reads it."""

import math

import pytest

from benchmarks import tails

COUNTS = {0.001: 10.0, 0.0025: 60.0, 0.005: 98.0, 0.01: 100.0, math.inf: 100.0}


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.05, 0.0005), (0.35, 0.00175), (0.98, 0.005), (0.99, 0.0075)]
)
def test_a_quantile_is_interpolated_within_its_bucket(share: float, seconds: float) -> None:
    assert tails.quantile(COUNTS, share) == pytest.approx(seconds)


def test_a_quantile_beyond_the_last_bound_has_no_value() -> None:
    assert math.isinf(tails.quantile({0.001: 1.0, math.inf: 100.0}, 0.99))
