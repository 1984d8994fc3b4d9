"""Shares as the page writes them."""

import pytest

from relay.admin.page.text.formats import percent


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
