"""Refusals in a row, of distinct events, are the destination's fault from the fifth on."""

from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import (
    Misconfigured,
    Refused,
    RefusesAll,
    SinkError,
    Temporary,
)
from relay.core.retry import FAILURE_THRESHOLD, Refusals, RefusalStreak

NO = Refused("400: no", status=400, answer="a captive page")


def refuse(streak: RefusalStreak, event: int, error: SinkError = NO) -> SinkError | None:
    return streak.judge(error, event=event, counts=True)


def test_the_fifth_refusal_in_a_row_is_the_destinations() -> None:
    streak = RefusalStreak()
    assert [refuse(streak, event) for event in range(FAILURE_THRESHOLD - 1)] == [NO] * 4
    assert streak.refusals is None
    fifth = refuse(streak, FAILURE_THRESHOLD)
    assert isinstance(fifth, RefusesAll)
    assert (fifth.reason, fifth.status) == ("it refuses every event: 400: no", 400)
    assert (fifth.answer, fifth.about_event) == ("a captive page", True)
    assert streak.refusals == Refusals("400: no")


def test_events_of_which_nothing_can_be_sent_count_too_and_are_named_so() -> None:
    streak = RefusalStreak()
    error = Refused("the template fails on this event", unsent=True)
    assert [refuse(streak, event, error) for event in range(4)] == [error] * 4
    fifth = refuse(streak, 4, error)
    assert isinstance(fifth, RefusesAll)
    assert fifth.reason == "nothing can be sent of any event: the template fails on this event"


def test_a_success_begins_anew() -> None:
    streak = RefusalStreak()
    for first in (0, 10, 20):
        assert [refuse(streak, first + event) for event in range(4)] == [NO] * 4
        assert isinstance(refuse(streak, first + 4), RefusesAll)
        streak.end()
        assert streak.refusals is None


def test_other_failures_neither_count_nor_begin_anew() -> None:
    streak = RefusalStreak()
    for error in (Temporary("down"), Misconfigured("401"), None):
        assert streak.judge(error, event=1, counts=True) is error
    for event in range(4):
        refuse(streak, event)
        streak.judge(Temporary("down"), event=10 + event, counts=True)
    assert isinstance(refuse(streak, 5), RefusesAll)


def test_one_event_counts_once() -> None:
    streak = RefusalStreak()
    assert [refuse(streak, 7) for _ in range(20)] == [NO] * 20
    assert streak.refusals is None


def test_refusals_that_do_not_count_are_the_destinations_once_all_are() -> None:
    streak = RefusalStreak()
    for event in range(20):
        assert streak.judge(NO, event=event, counts=False) is NO
    for event in range(5):
        refuse(streak, event)
    assert isinstance(streak.judge(NO, event=30, counts=False), RefusesAll)


def test_reasons_that_differ_are_none() -> None:
    streak = RefusalStreak()
    for event in range(5):
        refuse(streak, event, Refused(f"{event} bytes are too many"))
    assert streak.refusals == Refusals(None)


def test_a_streak_that_goes_on_takes_the_first_refusal_for_the_destinations() -> None:
    streak = RefusalStreak()
    streak.resume()
    assert isinstance(refuse(streak, 1), RefusesAll)
    assert streak.refusals == Refusals(None)
    streak.end()
    assert refuse(streak, 1) is NO


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_at_most_four_events_are_refused_for_good_between_two_successes(
    outcomes: list[tuple[bool, int]],
) -> None:
    streak, refused = RefusalStreak(), set[int]()
    for is_success, event in outcomes:
        if is_success:
            streak.end()
            refused.clear()
        elif refuse(streak, event) is NO:
            refused.add(event)
            assert len(refused) < FAILURE_THRESHOLD
