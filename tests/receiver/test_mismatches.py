"""Which requests with a wrong signature are the sender's own tries."""

from itertools import accumulate

import pytest

from relay.core.delivery_rules import WAITS_S
from relay.receiver.reporter import BODIES_MAX, Mismatches

TRIES_S = (0.0, *accumulate(float(wait_s) for wait_s in WAITS_S))


@pytest.mark.parametrize("late_s", [0, 0.2, 9])
def test_every_try_of_an_event_after_its_first_is_a_retry(late_s: float) -> None:
    seen = Mismatches()
    tries_s = [at_s + number * late_s for number, at_s in enumerate(TRIES_S)]
    assert [seen.is_retry("main", b"event", at_s) for at_s in tries_s] == [False, *[True] * 5]


@pytest.mark.parametrize("gap_s", [0, 1, 5, 17, 60, 600])
def test_a_stranger_that_repeats_a_body_at_another_rate_is_not_taken_for_the_sender(
    gap_s: float,
) -> None:
    seen = Mismatches()
    assert not any(seen.is_retry("main", b"x", number * gap_s) for number in range(20))


def test_another_body_or_another_source_is_not_a_retry() -> None:
    seen = Mismatches()
    seen.is_retry("main", b"a", 0)
    assert not seen.is_retry("main", b"b", 20)
    assert not seen.is_retry("academy", b"a", 20)


def test_a_flood_pushes_out_what_was_seen_longest_ago_and_nothing_else() -> None:
    seen = Mismatches()
    for body in ("first", "second", *range(BODIES_MAX - 1)):
        seen.is_retry("main", str(body).encode(), 0)
    assert seen.is_retry("main", b"second", 20)
    assert not seen.is_retry("main", b"first", 20)
