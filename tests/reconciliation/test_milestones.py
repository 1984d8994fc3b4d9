"""Milestones that views of a period imply, against what the store knows."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from relay.core.event import MILESTONES
from relay.reconciliation.milestones import KnownMilestones, MilestoneDecision, derive
from relay.reconciliation.period import GIVE_UP_MS, VIEW_MAX_MS, Period
from relay.reconciliation.views import ViewingHistory, ViewsRead
from relay.video_service.api.records import Session, Submission, Watched
from tests.conftest import NOW_MS

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SINCE_MS = NOW_MS - 10 * HOUR_MS
PERIOD = Period.of(since_ms=SINCE_MS, until_ms=NOW_MS, now_ms=NOW_MS, returned_ms=0)
LONG_AGO_MS = SINCE_MS - 100 * HOUR_MS
ADA = "ada@example.com"


def view(
    hours: float,
    percent: float | None = None,
    *,
    finished: bool | None = None,
    minutes: float | None = 10,
    email: str | None = ADA,
) -> Session:
    """A view that began this many hours after the period's begin."""
    started_ms = SINCE_MS + round(hours * HOUR_MS)
    return Session(
        id="ses_1",
        video_id="vid_1",
        title="Tour",
        email=email,
        started_ms=started_ms,
        ended_ms=None if minutes is None else started_ms + round(minutes * MINUTE_MS),
        percent=percent,
        finished=finished,
    )


def history(*views: Session) -> ViewingHistory:
    read = ViewsRead()
    read.add(views, PERIOD)
    read.add_earlier(views, PERIOD)
    (found,) = read.histories.values()
    return found


def decide(
    *views: Session,
    steps: Mapping[str, int] | None = None,
    since_ms: int | None = LONG_AGO_MS,
    is_whole: bool = True,
    watched: Watched | None = None,
    is_asked: bool = False,
) -> MilestoneDecision:
    known = KnownMilestones(
        steps=steps or {},
        since_ms=since_ms,
        is_whole=is_whole,
        is_asked=is_asked or watched is not None,
        watched=watched,
    )
    return derive(history(*views), known, PERIOD)


def names(decision: MilestoneDecision) -> list[str]:
    assert not decision.in_doubt
    return [milestone.name for milestone in decision.reached]


def answer(percent: float, *, first_h: float = 1, last_h: float = 2) -> Watched:
    return Watched(
        video_id="vid_1",
        percent=percent,
        first_ms=SINCE_MS + round(first_h * HOUR_MS),
        last_ms=SINCE_MS + round(last_h * HOUR_MS),
    )


@pytest.mark.parametrize(
    ("percent", "count"), [(0, 1), (23, 1), (26, 2), (48, 2), (60, 3), (80, 4), (90, 5), (100, 5)]
)
def test_one_view_reaches_what_its_percentage_passes(percent: float, count: int) -> None:
    assert names(decide(view(1, percent))) == list(MILESTONES[:count])


def test_known_milestones_are_not_made_again() -> None:
    steps = {"started": SINCE_MS + HOUR_MS, "50%": SINCE_MS + HOUR_MS}
    assert names(decide(view(1, 60), steps=steps)) == ["25%"]


def test_two_views_are_unsure_between_their_maximum_and_their_sum() -> None:
    views = view(1, 30), view(2, 30)
    assert decide(*views).in_doubt
    assert names(decide(*views, watched=answer(30, last_h=2.2))) == ["started", "25%"]
    assert names(decide(*views, watched=answer(60, last_h=2.2))) == ["started", "25%", "50%"]


def test_a_percentage_just_below_a_milestone_is_unsure_because_it_may_be_rounded() -> None:
    assert decide(view(1, 24.9)).in_doubt
    assert names(decide(view(1, 24.9), watched=answer(24.9))) == ["started"]


def test_finished_settles_what_percentages_do_not() -> None:
    finished = decide(view(1, 50), view(2, 45, finished=True))
    assert names(finished) == list(MILESTONES)
    unfinished = decide(view(1, 80), view(2, 80, finished=False))
    assert names(unfinished) == ["started", "25%", "50%", "75%"]


def test_an_unknown_percentage_is_settled_by_the_persons_answer() -> None:
    assert decide(view(1)).in_doubt
    assert names(decide(view(1), watched=answer(55))) == ["started", "25%", "50%"]


def test_a_doubt_that_the_api_does_not_settle_is_counted() -> None:
    decision = decide(view(1), is_asked=True)
    assert names(decision) == ["started"]
    assert decision.unsure == ["no_percent"] * 4


def test_a_milestone_that_was_certainly_reached_before_the_period_is_left_out() -> None:
    assert names(decide(view(-5, 60), view(1, 10))) == []
    assert names(decide(view(-5, 30, finished=True), view(1, 95))) == []


def test_a_milestone_that_an_event_of_before_implies_is_older() -> None:
    steps = {"50%": SINCE_MS - HOUR_MS}
    assert names(decide(view(1, 60), steps=steps)) == []


def test_a_milestone_that_only_both_views_reach_is_of_the_period() -> None:
    steps = {"started": SINCE_MS - HOUR_MS}
    assert names(decide(view(-5, 20), view(1, 80, finished=False), steps=steps)) == [
        "25%",
        "50%",
        "75%",
    ]


def test_a_relay_that_came_after_the_first_view_cannot_tell() -> None:
    views = view(-5, 20), view(-4, 20), view(1, 30)
    asked = answer(30, first_h=-5)
    knowing = decide(*views, since_ms=LONG_AGO_MS, watched=asked)
    assert names(knowing) == ["25%"]
    later = decide(*views, since_ms=SINCE_MS - HOUR_MS, watched=asked)
    assert names(later) == []
    assert later.unsure == ["older"]


def test_a_view_that_may_go_on_is_left() -> None:
    decision = decide(view(9, 60, minutes=None))
    assert names(decision) == ["started"]
    assert decision.left == ["view_open"]


def test_a_view_that_ended_too_short_a_time_ago_is_left() -> None:
    decision = decide(view(9.7, 60, minutes=17))
    assert names(decision) == ["started"]
    assert decision.left == ["view_open"]


def test_a_view_that_began_too_short_a_time_ago_is_left_whole() -> None:
    decision = decide(view(9.9, 60, minutes=1))
    assert names(decision) == []


def test_a_milestone_that_a_later_view_may_have_reached_is_not_reconstructed() -> None:
    decision = decide(view(1, 20), view(2, 20), view(9.8, 40, minutes=None))
    assert decision.in_doubt
    decision = decide(
        view(1, 20), view(2, 20), view(9.8, 40, minutes=None), watched=answer(60, last_h=9.9)
    )
    assert names(decision) == ["started"]
    assert decision.left == ["view_open"]


def test_a_view_without_an_end_is_over_after_a_day() -> None:
    period = Period.of(
        since_ms=SINCE_MS - 2 * VIEW_MAX_MS, until_ms=NOW_MS, now_ms=NOW_MS, returned_ms=0
    )
    read = ViewsRead()
    assert read.add([view(-30, 60, minutes=None)], period)
    (found,) = read.histories.values()
    assert found.within.count == 1


def test_views_from_a_place_on_are_compared_with_the_persons_first_view() -> None:
    assert decide(view(1, 60), is_whole=False).in_doubt
    inside = decide(view(1, 60), is_whole=False, watched=answer(60, first_h=1))
    assert names(inside) == ["started", "25%", "50%"]
    older = decide(view(1, 60), is_whole=False, since_ms=SINCE_MS, watched=answer(60, first_h=-9))
    assert names(older) == []
    assert older.unsure == ["older", "older"]


def test_a_view_that_a_form_named_within_the_period_is_given_back_from_its_start() -> None:
    decision = decide(view(-0.1, 60))
    assert names(decision) == ["started", "25%", "50%"]


def test_a_view_that_began_before_the_store_may_have_been_sent() -> None:
    judgement = decide(view(-0.1, 60), since_ms=SINCE_MS)
    assert names(judgement) == ["25%", "50%"]
    assert judgement.unsure == ["older"]


def test_a_last_view_before_the_period_that_did_not_finish_tells_that_completed_is_new() -> None:
    views = view(-5, 50), view(-4, 45, finished=False), view(1, 50, finished=True)
    judgement = decide(*views, since_ms=SINCE_MS - HOUR_MS)
    assert names(judgement) == ["completed"]
    assert judgement.unsure == ["older"]


def test_a_person_who_finished_has_reached_everything_whatever_the_percentage() -> None:
    finished = Watched(
        video_id="vid_1", finished=True, first_ms=SINCE_MS + HOUR_MS, last_ms=SINCE_MS + HOUR_MS
    )
    assert names(decide(view(1), watched=finished)) == list(MILESTONES)


def test_the_view_that_ended_last_counts_in_whatever_order_views_are_listed() -> None:
    listed = view(2, 80, finished=False), view(1, 80, finished=True)
    assert history(*listed).within.last_finished is False
    assert history(*reversed(listed)).within.last_finished is False


def test_a_milestone_has_the_end_of_the_view_that_reached_it() -> None:
    decision = decide(view(1, 30), view(2, 60), watched=answer(60))
    times = {milestone.name: milestone.at_ms - SINCE_MS for milestone in decision.reached}
    assert times == {
        "started": HOUR_MS,
        "25%": HOUR_MS + 10 * MINUTE_MS,
        "50%": 2 * HOUR_MS + 10 * MINUTE_MS,
    }


def test_anonymous_views_of_the_period_are_counted() -> None:
    read = ViewsRead()
    views: Sequence[Session] = [view(-5, email=None), view(1, email=None), view(2, email=" ")]
    read.add(views, PERIOD)
    assert (read.anonymous, read.histories) == (2, {})


def test_a_view_without_a_begin_or_a_video_is_counted_and_holds_nothing_up() -> None:
    read = ViewsRead()
    assert read.add([replace(view(1), started_ms=None), replace(view(2), video_id=None)], PERIOD)
    assert (read.undated, read.histories) == (2, {})


def test_a_form_after_the_horizon_is_left_to_the_next_run() -> None:
    read = ViewsRead()
    in_time, late = (
        Submission(id=id_, email=ADA, created_ms=at_ms)
        for id_, at_ms in (("lead_1", PERIOD.horizon_ms - 1), ("lead_2", PERIOD.horizon_ms))
    )
    read.add([replace(view(9), submitted=(in_time, late))], PERIOD)
    assert [form.submission.id for form in read.forms] == ["lead_1"]
    assert len(read.forms_left) == 1


def test_a_page_is_settled_if_every_view_was_over_before_the_horizon() -> None:
    assert ViewsRead().add([view(1), view(2)], PERIOD)
    assert not ViewsRead().add([view(1), view(2, minutes=8 * 60 - 5)], PERIOD)
    assert PERIOD.horizon_ms == NOW_MS - GIVE_UP_MS
