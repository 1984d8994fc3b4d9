"""What viewers see in place of addresses, and how long a hostile text takes."""

import time

import pytest

from relay.admin.page.visit import ADDRESS

ALLOWED_S = 1.0
LENGTH = 1 << 20


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("to ada@example.com, twice", "to #, twice"),
        ("mailto:ada@example.com", "mailto:#"),
        ("/unsubscribe?ada%40example.com", "#"),
        ("ada%2540example.com", "#"),
        ('"ada lovelace"@example.com', "#"),
        ("no address @ all", "no address @ all"),
    ],
)
def test_an_address_is_masked_however_it_is_written(text: str, masked: str) -> None:
    assert ADDRESS.sub("#", text) == masked


@pytest.mark.parametrize("part", ["a", "@", "%40", "%4", "%25", '"', '"a', "a@", "a."])
def test_a_long_text_of_a_stranger_delays_no_other_request(part: str) -> None:
    text = part * (LENGTH // len(part))
    before_s = time.thread_time()
    ADDRESS.sub("#", text)
    assert time.thread_time() - before_s < ALLOWED_S
