"""Numbers, durations and ages as the page, the commands and the findings write them."""

import pytest

from relay.core.units import deviation, duration, number, relative, span


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999.6, "999 ms"),
        (9949, "9.9 s"),
        (9999, "9.9 s"),
        (27_600, "27 s"),
        (59_600, "59 s"),
        (60_400, "1 min"),
        (251_000, "4 min 11 s"),
        (3_599_999, "59 min 59 s"),
        (90_000_000, "1 d 1 h"),
        (86_400_000 * 1088, "1,088 d"),
    ],
)
def test_a_duration_has_no_more_digits_than_people_read(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize("ms", [1000, 9999, 27_600, 59_999, 251_999, 3_599_999, 172_799_999])
def test_an_age_is_the_beginning_of_the_duration(ms: int) -> None:
    whole, unit = span(ms).split()
    assert duration(ms).split()[0].split(".")[0] == whole
    assert duration(ms).split()[1] == unit


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "now"), (-999, "now"), (-1999, "1 s ago"), (-7_300_000, "2 h ago"), (59_999, "in 59 s")],
)
def test_a_time_is_told_by_its_distance_from_now(ms: int, text: str) -> None:
    assert relative(1_000_000_000_000 + ms, 1_000_000_000_000) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.312, "+312 ms"), (-1.25, "-1.2 s"), (0, "+0 ms"), (-61, "-1 min 1 s")]
)
def test_the_deviation_of_a_clock_has_a_sign(seconds: float, text: str) -> None:
    assert deviation(seconds) == text


def test_thousands_are_separated() -> None:
    assert number(1088) == "1,088"
