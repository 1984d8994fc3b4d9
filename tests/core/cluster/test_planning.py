"""One member's plan: heartbeats, acquisitions, deadlines, handovers, departure."""

from itertools import pairwise
from random import Random
from typing import TypeVar

import pytest

from relay.core.cluster.planning import Planner
from relay.core.cluster.statements import (
    Acquire,
    Acquired,
    Beat,
    Fence,
    Leave,
    OwnershipRow,
    Poll,
    Polled,
    Release,
    Released,
    Renewed,
    Statement,
    Survey,
    Surveyed,
)
from relay.core.cluster.timing import (
    LEASE_S,
    MARGIN_S,
    POLL_MAX_S,
    POLL_MIN_S,
    RENEW_S,
    RETRY_S,
    SURVEY_S,
    TRUST_S,
    UNCLAIMED_S,
    WITNESS_S,
)

FENCE = Fence("1", 1)
S = TypeVar("S", bound=Statement)


def row(
    sink: str, holder: str | None = None, *, version: int = 1, expired: bool = False
) -> OwnershipRow:
    return OwnershipRow(sink, holder, version, expired)


class Member:
    """A planner with its clock, and a database that answers as a test says."""

    def __init__(self, *sinks: str) -> None:
        self.planner = Planner("me", sinks, random=Random(1))
        self.now = 100.0

    def next(self, kind: type[S], within_s: float = 2.0) -> S:
        """Go on until the planner sends a statement of this kind; answer all others."""
        until = self.now + within_s
        while True:
            for statement in self.planner.plan(self.now):
                if isinstance(statement, kind):
                    return statement
                self.answer(statement)
            self.now = max(self.now, self.planner.due_s())
            assert self.now <= until, f"no {kind.__name__}"

    def looks(self, seconds: float) -> list[tuple[float, Statement]]:
        """Go on for this long; return when it looked for new deliveries, without finding any."""
        until, found = self.now + seconds, list[tuple[float, Statement]]()
        while self.now < until:
            for statement in self.planner.plan(self.now):
                self.answer(statement)
                if isinstance(statement, Poll | Survey):
                    found.append((self.now, statement))
            self.now = min(max(self.now, self.planner.due_s()), until)
        return found

    def answer(self, statement: Statement, *, survey: Surveyed | None = None) -> None:
        match statement:
            case Beat(leases=leases):
                self.planner.answered(statement, Renewed(frozenset(leases)), self.now)
            case Survey():
                self.planner.answered(statement, survey or surveyed(), self.now)
            case Poll():
                self.planner.answered(statement, Polled(frozenset()), self.now)
            case _:
                self.planner.answered(statement, Released(), self.now)

    def survey(self, survey: Surveyed, *, within_s: float = 2.0) -> None:
        self.answer(self.next(Survey, within_s), survey=survey)

    def own(self, *sinks: str) -> None:
        """Acquire these sinks at the present time."""
        self.survey(surveyed(*(row(sink) for sink in sinks)))
        acquire = self.next(Acquire)
        leases = tuple((sink, FENCE) for sink, _ in acquire.rows)
        self.planner.answered(acquire, Acquired(leases), self.now)

    def may_send(self, sink: str = "a") -> bool:
        return self.planner.may_send(sink, FENCE, self.now)

    def states(self) -> dict[str, str]:
        return {lease.sink: lease.state for lease in self.planner.leases}


def surveyed(
    *rows: OwnershipRow,
    start: str = "1",
    fresh: bool = False,
    members: dict[str, frozenset[str]] | None = None,
) -> Surveyed:
    return Surveyed("1", start, fresh, members or {}, rows)


@pytest.fixture
def member() -> Member:
    return Member("a", "b")


def test_the_first_statement_is_a_heartbeat(member: Member) -> None:
    assert member.planner.plan(member.now) == [Beat("me", ("a", "b"), ())]


def test_a_free_sink_is_acquired_and_sent_to(member: Member) -> None:
    assert not member.may_send()
    member.own("a", "b")
    assert member.may_send("a")
    assert member.may_send("b")


def test_a_lease_renews_with_each_heartbeat(member: Member) -> None:
    member.own("a")
    for _ in range(5):
        beat = member.next(Beat, RENEW_S + 0.1)
        assert beat.leases == (("a", FENCE),)
        member.answer(beat)
    assert member.may_send()


def test_trust_ends_a_margin_before_the_lease_counted_from_the_request(member: Member) -> None:
    member.own("a")
    beat = member.next(Beat, RENEW_S + 0.1)
    sent_s = member.now
    member.now += 1.9
    member.answer(beat)
    member.now = sent_s + LEASE_S - MARGIN_S - 0.001
    assert member.may_send()
    member.now = sent_s + LEASE_S - MARGIN_S
    assert not member.may_send()
    member.planner.plan(member.now)
    assert member.states() == {"a": "lost"}


def test_an_answer_that_comes_after_the_deadline_extends_no_lease(member: Member) -> None:
    member.own("a")
    beat = member.next(Beat, RENEW_S + 0.1)
    member.now += TRUST_S
    member.answer(beat)
    assert member.states() == {"a": "lost"}


def test_a_lease_that_was_not_renewed_is_lost(member: Member) -> None:
    member.own("a", "b")
    beat = member.next(Beat, RENEW_S + 0.1)
    member.planner.answered(beat, Renewed(frozenset({("b", FENCE)})), member.now)
    assert member.states() == {"a": "lost", "b": "held"}


def test_a_refused_fence_ends_the_lease(member: Member) -> None:
    member.own("a")
    member.planner.fenced("a", Fence("1", 0))
    assert member.may_send()
    member.planner.fenced("a", FENCE)
    assert member.states() == {"a": "lost"}


def test_a_lost_sink_is_acquired_again_only_after_its_dispatcher_has_ended(member: Member) -> None:
    member.own("a")
    member.planner.fenced("a", FENCE)
    held = surveyed(row("a", "me", version=2))
    member.survey(held)
    assert not any(isinstance(each, Acquire) for each in member.planner.plan(member.now))
    member.planner.drained("a", FENCE)
    member.survey(held)
    assert member.next(Acquire).rows == (("a", 2),)


def test_an_acquisition_without_an_answer_counts_as_not_held(member: Member) -> None:
    member.survey(surveyed(row("a")))
    acquire = member.next(Acquire)
    member.planner.lost(acquire, member.now)
    assert member.states() == {}
    member.planner.answered(acquire, Acquired((("a", FENCE),)), member.now)
    assert member.states() == {}
    member.survey(surveyed(row("a", "me", version=2)))
    assert member.next(Acquire).rows == (("a", 2),)


def test_a_heartbeat_without_an_answer_is_sent_again_soon(member: Member) -> None:
    beat = member.next(Beat)
    member.planner.lost(beat, member.now)
    assert member.planner.plan(member.now + RETRY_S / 2) == []
    assert isinstance(member.planner.plan(member.now + RETRY_S)[0], Beat)


def test_an_expired_row_is_taken_once_it_was_seen_unchanged_for_long_enough(member: Member) -> None:
    expired = surveyed(row("a", "other", expired=True))
    member.survey(expired)
    seen_s = member.now
    while member.now < seen_s + WITNESS_S:
        member.survey(expired)
        if member.now < seen_s + WITNESS_S:
            assert not any(isinstance(each, Acquire) for each in member.planner.plan(member.now))
    assert member.next(Acquire).rows == (("a", 1),)


def test_a_row_that_changes_is_watched_anew(member: Member) -> None:
    for version in range(12):
        member.survey(surveyed(row("a", "other", version=version, expired=True)))
        assert not any(isinstance(each, Acquire) for each in member.planner.plan(member.now))


@pytest.mark.parametrize("knows_the_server", [False, True])
def test_a_server_that_has_just_started_gives_nothing_away(
    member: Member, *, knows_the_server: bool
) -> None:
    if knows_the_server:
        member.survey(surveyed())
    restarted = surveyed(row("a"), start="2", fresh=not knows_the_server)
    member.survey(restarted)
    seen_s = member.now
    while member.now < seen_s + WITNESS_S - 1.3:
        member.survey(restarted)
        assert not any(isinstance(each, Acquire) for each in member.planner.plan(member.now))
    member.survey(restarted)
    member.survey(restarted)
    assert member.next(Acquire).rows == (("a", 1),)


def test_a_sink_of_another_members_share_is_taken_if_that_leaves_it(member: Member) -> None:
    free = surveyed(row("a"), members={"he": frozenset({"a"})})
    member.survey(free)
    seen_s = member.now
    while member.now < seen_s + UNCLAIMED_S:
        assert not any(isinstance(each, Acquire) for each in member.planner.plan(member.now))
        member.survey(free)
    assert member.next(Acquire).rows == (("a", 1),)


def test_an_excess_sink_is_released_once_its_dispatcher_has_ended(member: Member) -> None:
    member.own("a", "b")
    rows = (row("a", "me", version=2), row("b", "me", version=2))
    member.survey(surveyed(*rows, members={"other": frozenset({"a", "b"})}))
    assert member.states() == {"a": "held", "b": "draining"}
    assert not member.may_send("b")
    beat = member.next(Beat, RENEW_S + 0.1)
    assert beat.leases == (("a", FENCE), ("b", FENCE))
    member.answer(beat)
    member.planner.drained("b", FENCE)
    assert member.next(Release) == Release("me", "b", FENCE)
    assert member.states() == {"a": "held"}


def test_a_sink_that_left_the_config_is_released(member: Member) -> None:
    member.own("a", "b")
    member.planner.configure(["a"])
    assert member.states() == {"a": "held", "b": "draining"}
    member.planner.drained("b", FENCE)
    assert member.next(Release) == Release("me", "b", FENCE)


def test_a_leaving_member_releases_each_sink_first(member: Member) -> None:
    member.own("a")
    member.planner.leave()
    beat = member.next(Beat)
    assert beat.sinks == ()
    member.answer(beat)
    member.planner.drained("a", FENCE)
    member.answer(member.next(Release))
    leave = member.next(Leave)
    member.planner.lost(leave, member.now)
    member.answer(member.next(Leave))
    assert member.planner.has_left
    assert member.planner.plan(member.now + 100) == []


def test_a_sink_acquired_while_leaving_is_released(member: Member) -> None:
    member.survey(surveyed(row("a")))
    acquire = member.next(Acquire)
    member.planner.leave()
    member.planner.answered(acquire, Acquired((("a", FENCE),)), member.now)
    assert member.states() == {"a": "draining"}


def test_a_survey_that_is_answered_during_the_departure_takes_no_sink(member: Member) -> None:
    member.own("a")
    survey = member.next(Survey)
    member.planner.leave()
    member.answer(survey, survey=surveyed(row("a", "me"), row("b")))
    member.planner.drained("a", FENCE)
    member.answer(member.next(Release))
    assert member.next(Leave) == Leave("me")


def test_polls_are_frequent_while_deliveries_come_and_a_survey_counts_as_one(
    member: Member,
) -> None:
    member.own("a")
    poll = member.next(Poll)
    assert member.planner.answered(poll, Polled(frozenset({"a", "b"})), member.now) == ["a"]
    looks = member.looks(5)
    gaps = [later - earlier for earlier, later in pairwise(at_s for at_s, _ in looks)]
    assert gaps[0] == pytest.approx(POLL_MIN_S)
    assert max(gaps) == pytest.approx(POLL_MAX_S)
    polls = sum(isinstance(look, Poll) for at_s, look in looks if at_s > member.now - 2)
    assert 1 <= polls <= 2 / POLL_MAX_S


def test_a_poll_without_an_answer_is_repeated(member: Member) -> None:
    member.own("a")
    member.planner.lost(member.next(Poll), member.now)
    lost_s = member.now
    assert member.looks(1)[0][0] <= lost_s + RETRY_S


def test_an_answer_to_a_poll_that_was_given_up_wakes_nothing(member: Member) -> None:
    member.own("a")
    poll = member.next(Poll)
    member.planner.lost(poll, member.now)
    assert member.planner.answered(poll, Polled(frozenset({"a"})), member.now) == ()


def test_a_statement_that_is_lost_twice_postpones_nothing_again(member: Member) -> None:
    beat = member.next(Beat)
    member.planner.lost(beat, member.now)
    due_s = member.planner.due_s()
    member.planner.lost(beat, member.now + RETRY_S)
    assert member.planner.due_s() == due_s


def test_a_survey_with_news_wakes_all_sinks_that_are_held(member: Member) -> None:
    member.own("a")
    survey = member.next(Survey)
    news = Surveyed("1", "1", fresh=False, members={}, rows=(), is_news=True)
    assert list(member.planner.answered(survey, news, member.now)) == ["a"]


def test_an_announcement_wakes_the_named_sinks_that_are_held(member: Member) -> None:
    member.own("a")
    assert member.planner.announced({"a", "b"}) == ["a"]
    assert list(member.planner.announced(None)) == ["a"]


def test_a_member_that_is_notified_rarely_polls(member: Member) -> None:
    member.own("a")
    member.answer(member.next(Poll))
    member.planner.listens(member.now, is_listening=True)
    member.looks(5)
    for _ in range(10):
        member.planner.announced(["a"])
        survey = member.next(Survey)
        news = Surveyed("1", "1", fresh=False, members={}, rows=(), is_news=True)
        member.planner.answered(survey, news, member.now)
    assert not any(isinstance(look, Poll) for _, look in member.looks(5))


def test_a_member_polls_for_what_nobody_has_announced(member: Member) -> None:
    member.own("a")
    member.planner.listens(member.now, is_listening=True)
    member.looks(20)
    survey = member.next(Survey)
    news = Surveyed("1", "1", fresh=False, members={}, rows=(), is_news=True)
    member.planner.answered(survey, news, member.now)
    at_s, look = member.looks(1)[0]
    assert isinstance(look, Poll)
    assert at_s <= member.now - 1 + 2 * POLL_MIN_S


def test_a_member_that_does_not_listen_polls_for_what_it_has_not_accepted_itself(
    member: Member,
) -> None:
    member.own("a")
    poll = member.next(Poll)
    member.planner.announced(())
    member.planner.answered(poll, Polled(frozenset({"a"})), member.now)
    assert member.looks(0.1)[0][0] <= member.now - 0.1 + 2 * POLL_MIN_S


def test_a_member_that_is_no_longer_notified_polls_again_soon(member: Member) -> None:
    member.own("a")
    member.planner.listens(member.now, is_listening=True)
    member.looks(20)
    member.planner.listens(member.now, is_listening=False)
    ended_s = member.now
    polled_s = next(at_s for at_s, look in member.looks(5) if isinstance(look, Poll))
    assert polled_s <= ended_s + 2 * RETRY_S + SURVEY_S


def test_an_answer_of_the_wrong_kind_is_refused(member: Member) -> None:
    beat = member.next(Beat)
    with pytest.raises(TypeError, match="Released answers no Beat"):
        member.planner.answered(beat, Released(), member.now)
