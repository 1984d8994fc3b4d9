"""Words about the pace of a backlog."""

import pytest

from relay.core.sink_status import Flow, about, outlook, place, rates

GROWING = Flow(in_per_minute=168, out_per_minute=30, direction="growing", wait_s=60_618)
DRAINING = Flow(
    in_per_minute=0, out_per_minute=30, direction="draining", wait_s=60_618, end_s=60_618
)
STEADY = Flow(in_per_minute=30, out_per_minute=30, direction="steady", wait_s=7200)
STILL = Flow(in_per_minute=0, out_per_minute=0, direction="steady")


def test_small_rates_have_a_decimal_and_large_ones_separators() -> None:
    flow = Flow(in_per_minute=12_345.6, out_per_minute=0.4, direction="growing")
    assert rates(flow) == "0.4 a minute out, 12,346 in"
    assert rates(GROWING) == "30 a minute out, 168 in"


@pytest.mark.parametrize(
    ("flow", "state", "pending", "words"),
    [
        (DRAINING, "active", 30_309, "in about 17 h"),
        (
            Flow(in_per_minute=9, out_per_minute=9, direction="steady", wait_s=2, end_s=2),
            "active",
            1,
            "within a minute",
        ),
        (GROWING, "active", 4840, "not at this pace: growing"),
        (STEADY, "active", 3600, "not at this pace: as many come as go"),
        (STILL, "active", 3, "not at this pace: nothing goes out"),
        (
            Flow(
                in_per_minute=0, out_per_minute=0, direction="steady", retrying=3, wait_s=0, end_s=0
            ),
            "active",
            3,
            "with the next tries",
        ),
        (None, "active", 3, "not known yet"),
        (None, "standby", 3, "not known yet"),
        (DRAINING, "active", None, "not known yet"),
        (GROWING, "active", 0, "nothing waits"),
        (None, "active", 0, "nothing waits"),
        (GROWING, "paused", 3, "when it is resumed"),
        (GROWING, "parked", 3, "not while it is parked"),
        (GROWING, "throttled", 3, "not while it is throttled"),
        (GROWING, "stands still", 3, "not while it stands still"),
        (None, "not configured", 3, "not while it is not in the config"),
    ],
)
def test_the_outlook_says_when_nothing_will_wait(
    flow: Flow | None, state: str, pending: int | None, words: str
) -> None:
    assert outlook(flow, state=state, pending=pending) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "about 1 min"),
        (89, "about 1 min"),
        (560, "about 9 min"),
        (600, "about 10 min"),
        (3400, "about 55 min"),
        (3500, "about 1 h"),
        (47 * 3600, "about 47 h"),
        (48 * 3600, "about 2 d"),
        (864_001, "over 10 d"),
    ],
)
def test_a_rough_time_is_rounded_to_its_size(seconds: float, words: str) -> None:
    assert about(seconds) == words


def test_a_place_says_how_many_are_ahead_and_how_long_they_take() -> None:
    assert place(30_309, is_more=False, flow=DRAINING) == "behind 30,309, about 17 h"
    assert place(10_000, is_more=True, flow=DRAINING) == "behind more than 10,000, over 6 h"
    assert place(12, is_more=False, flow=DRAINING) == "behind 12, within a minute"
    assert place(5, is_more=False, flow=None) == "behind 5"
    assert place(5, is_more=False, flow=STILL) == "behind 5"
    assert place(0, is_more=False, flow=DRAINING) == ""
