"""The limit of wrong tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.admin.page.access import login_limit
from relay.admin.page.access.login_limit import TOTAL_BURST, TRIES, TRY_AGAIN_S, LoginLimit

ADDRESS = "192.0.2.7"
START_S = 1000.0


def exhausted(address: str | None = ADDRESS, *, now_s: float = START_S) -> LoginLimit:
    limit = LoginLimit()
    for _ in range(TRIES):
        assert limit.wait_s(address, now_s=now_s) == 0
        limit.failed(address, now_s=now_s)
    return limit


def test_five_tries_are_free_then_one_comes_every_30_s() -> None:
    limit, now_s = exhausted(), START_S
    for _ in range(3):
        assert limit.wait_s(ADDRESS, now_s=now_s) == 30
        assert limit.wait_s(ADDRESS, now_s=now_s + 29.5) == 1
        now_s += TRY_AGAIN_S
        assert limit.wait_s(ADDRESS, now_s=now_s) == 0
        limit.failed(ADDRESS, now_s=now_s)


def test_all_tries_are_free_again_after_a_while() -> None:
    limit, later_s = exhausted(), START_S + TRIES * TRY_AGAIN_S
    for _ in range(TRIES):
        assert limit.wait_s(ADDRESS, now_s=later_s) == 0
        limit.failed(ADDRESS, now_s=later_s)
    assert limit.wait_s(ADDRESS, now_s=later_s) == 30


def test_another_address_does_not_wait() -> None:
    limit = exhausted()
    assert limit.wait_s("192.0.2.8", now_s=START_S) == 0
    assert limit.wait_s(None, now_s=START_S) == 0


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.7", "192.0.2.8", False),
        (None, None, True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(
    first: str | None, second: str | None, is_one: bool
) -> None:
    assert (exhausted(first).wait_s(second, now_s=START_S) > 0) is is_one


def test_wrong_tokens_of_all_addresses_are_limited_too() -> None:
    limit = LoginLimit()
    waits = [limit.failed(f"10.0.{n}.1", now_s=START_S) for n in range(TOTAL_BURST + 2)]
    assert waits == [0] * TOTAL_BURST + [30, 30]
    assert limit.failed("10.9.9.9", now_s=START_S + 0.5) == 0
    assert limit.failed("10.9.9.8", now_s=START_S + 0.5) == 30
    assert limit.wait_s("192.0.2.99", now_s=START_S) == 0


def test_addresses_are_forgotten_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limit, "ADDRESSES_MAX", 3)
    limit = exhausted()
    for n in range(2):
        limit.failed(f"10.0.0.{n}", now_s=START_S)
    assert limit.wait_s(ADDRESS, now_s=START_S) == 30
    limit.failed(ADDRESS, now_s=START_S)  # now the one that failed last
    for n in range(2, 4):
        limit.failed(f"10.0.0.{n}", now_s=START_S)
    assert limit.wait_s(ADDRESS, now_s=START_S) == 60
    limit.failed("10.0.0.9", now_s=START_S)
    assert limit.wait_s(ADDRESS, now_s=START_S) == 0


def test_ten_thousand_addresses_are_remembered_and_no_more() -> None:
    limit = LoginLimit()
    for n in range(10_001):
        address = f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
        for _ in range(TRIES):
            limit.failed(address, now_s=START_S)
    waits = [limit.wait_s(f"10.0.{n >> 8}.{n & 255}", now_s=START_S) for n in range(10_001)]
    assert waits.count(0) == 1
    assert waits[0] == 0


def test_a_clock_that_goes_back_keeps_nobody_out_who_did_not_fail() -> None:
    limit = exhausted()
    assert limit.wait_s("192.0.2.8", now_s=0.0) == 0
    assert limit.wait_s(ADDRESS, now_s=START_S - 10) == 40


@given(st.lists(st.floats(0, 60), max_size=60))
def test_never_more_tries_than_the_limit_allows(gaps: list[float]) -> None:
    limit, now_s, tries = LoginLimit(), START_S, 0
    for gap in gaps:
        now_s += gap
        if limit.wait_s(ADDRESS, now_s=now_s) == 0:
            limit.failed(ADDRESS, now_s=now_s)
            tries += 1
    assert tries <= TRIES + (now_s - START_S) / TRY_AGAIN_S + 1e-6
