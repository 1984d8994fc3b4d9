"""The throughput of a sink in the last minute."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relay.delivery.reporter import ThroughputWindow

moments = st.lists(st.floats(0, 400), max_size=60).map(sorted)


def test_a_new_window_is_empty() -> None:
    assert ThroughputWindow().last_minute(12_345.6) == 0


def test_a_delivery_counts_for_one_minute() -> None:
    pace = ThroughputWindow()
    pace.add(1, 1000.0)
    pace.add(1, 1000.9)
    pace.add(1, 1030.0)
    assert pace.last_minute(1030.0) == 3
    assert pace.last_minute(1059.9) == 3
    assert pace.last_minute(1060.0) == 1
    assert pace.last_minute(1089.9) == 1
    assert pace.last_minute(1090.0) == 0


def test_reading_changes_nothing() -> None:
    pace = ThroughputWindow()
    pace.add(1, 5.0)
    assert [pace.last_minute(6.0) for _ in range(3)] == [1, 1, 1]


def test_a_long_pause_clears_the_window() -> None:
    pace = ThroughputWindow()
    for second in range(60):
        pace.add(1, float(second))
    assert pace.last_minute(59.0) == 60
    assert pace.last_minute(1_000_000.0) == 0
    pace.add(1, 1_000_000.0)
    assert pace.last_minute(1_000_000.0) == 1


@given(moments=moments, later=st.floats(0, 200))
def test_the_last_minute_equals_that_of_a_full_list(moments: list[float], later: float) -> None:
    pace = ThroughputWindow()
    for moment in moments:
        pace.add(1, moment)
    now_s = (moments[-1] if moments else 0.0) + later
    young = [moment for moment in moments if int(moment) > int(now_s) - ThroughputWindow.WINDOW_S]
    assert pace.last_minute(now_s) == len(young)


def test_many_are_counted_in_constant_memory() -> None:
    pace, random = ThroughputWindow(), Random(1)
    now_s = 0.0
    for _ in range(5000):
        now_s += random.uniform(0, 0.01)
        pace.add(1, now_s)
    assert pace.last_minute(now_s) == 5000
    for second in range(100, 1000):
        pace.add(1, float(second))
    assert len(pace._counts) == ThroughputWindow.WINDOW_S
