"""Numbers as the page writes them."""

import pytest

from relay.admin.page.text.formats import duration, percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.0006, "0.1 %"),
        (0.042, "4.2 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.385, "38 %"),
        (0.9999, ">99 %"),
        (1, "100 %"),
        (12.5, "1,250 %"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999.4, "999 ms"),
        (999.6, "1.0 s"),
        (9949, "9.9 s"),
        (9951, "10 s"),
        (44_100, "44 s"),
        (59_600, "1 min"),
        (251_000, "4 min 11 s"),
    ],
)
def test_a_duration_has_no_more_digits_than_people_read(ms: float, text: str) -> None:
    assert duration(ms) == text
