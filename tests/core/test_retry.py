"""The decision after an attempt: schedule, minimum wait, giving up."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.core.delivery import STATUS_AFTER, Delivery, Status
from relay.core.errors import Misconfigured, Refused, RefusesAll, SinkError, Temporary
from relay.core.event import Event
from relay.core.retry import (
    JITTER,
    PROBE_MAX_MS,
    RETRY_AFTER_CAP_MS,
    SUSPECT_MIN_AGE_MS,
    SUSPECT_MIN_TRIES,
    Decision,
    RetryPolicy,
    Standing,
    backoff_ms,
    decide,
    result_of,
    standing,
)
from tests.conftest import NOW_MS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEFAULT = RetryPolicy()


class NoDice(Random):
    """Always returns the smallest number."""

    def random(self) -> float:
        return 0.0


class FullDice(Random):
    """Always returns the largest number."""

    def random(self) -> float:
        return 1.0 - 2**-53


def policy(first: int, factor: float, longest: int, give_up_after: int = 3 * DAY_MS) -> RetryPolicy:
    return RetryPolicy(
        first=Duration(first),
        factor=factor,
        max=Duration(longest),
        give_up_after=Duration(give_up_after),
    )


policies = st.builds(
    policy,
    st.integers(1, DAY_MS),
    st.floats(1, 100),
    st.integers(1, 30 * DAY_MS),
)


def attempted(
    event: Event,
    error: SinkError | None,
    *,
    attempts: int = 0,
    tries: int | None = None,
    first_ms: int | None = None,
    now_ms: int = NOW_MS,
    random: Random | None = None,
    standing: Standing = "untried",
    probing: bool = False,
) -> Decision:
    delivery = Delivery(
        seq=1,
        sink="crm",
        event=event,
        attempts=attempts,
        first_attempt_ms=first_ms,
        tries=attempts if tries is None else tries,
    )
    return decide(
        delivery,
        error,
        DEFAULT,
        standing=standing,
        probing=probing,
        started_ms=now_ms - 50,
        now_ms=now_ms,
        random=random or NoDice(),
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Temporary("no token", unsent=True), "retry"),
        (Misconfigured("no token", unsent=True), "parked"),
    ],
)
@pytest.mark.parametrize("probing", [False, True])
@pytest.mark.parametrize("standing_", ["untried", "tried", "suspect"])
def test_an_event_that_was_never_sent_is_kept_whatever_its_age(
    lead: Event, error: SinkError, expected: str, standing_: Standing, probing: bool
) -> None:
    decision = attempted(
        lead,
        error,
        attempts=10 * SUSPECT_MIN_TRIES,
        first_ms=NOW_MS - 365 * DAY_MS,
        standing=standing_,
        probing=probing,
    )
    assert (decision.result, decision.counts) == (expected, False)
    assert NOW_MS < decision.due_ms <= NOW_MS + PROBE_MAX_MS


def test_an_event_that_was_never_sent_waits_as_long_as_asked_within_bounds(lead: Event) -> None:
    for asked_ms in (5 * PROBE_MAX_MS, DAY_MS):
        error = Temporary("no token", unsent=True, retry_after_ms=asked_ms)
        decision = attempted(lead, error)
        assert decision.due_ms == NOW_MS + min(asked_ms, RETRY_AFTER_CAP_MS)


def test_the_waits_grow_by_the_factor_up_to_the_longest() -> None:
    waits = [backoff_ms(DEFAULT, tries, random=NoDice()) for tries in range(1, 15)]
    doubled = [1_000 * 2**step for step in range(12)]
    assert waits == [*doubled, HOUR_MS, HOUR_MS]


@given(policies, st.integers(1, 10_000))
def test_a_wait_is_never_shorter_than_the_one_before_nor_longer_than_the_longest(
    policy: RetryPolicy, tries: int
) -> None:
    wait = backoff_ms(policy, tries, random=NoDice())
    assert wait <= backoff_ms(policy, tries + 1, random=NoDice()) <= policy.max


@given(policies)
def test_no_wait_exceeds_the_longest(policy: RetryPolicy) -> None:
    assert backoff_ms(policy, 10**4, random=FullDice()) <= policy.longest_ms
    assert policy.longest_ms <= policy.max * (1 + JITTER)


@given(policies, st.integers(1, 10_000), st.randoms(use_true_random=False))
def test_jitter_only_adds_and_never_more_than_its_share(
    policy: RetryPolicy, tries: int, random: Random
) -> None:
    plain = backoff_ms(policy, tries, random=NoDice())
    assert plain <= backoff_ms(policy, tries, random=random) <= policy.max * (1 + JITTER)


def test_jitter_spreads_the_waits() -> None:
    assert backoff_ms(DEFAULT, 1, random=FullDice()) == 1_100
    assert len({backoff_ms(DEFAULT, 4, random=Random(seed)) for seed in range(20)}) > 10


@pytest.mark.parametrize("tries", [10**3, 10**6, 10**18])
def test_any_number_of_attempts_has_a_wait(tries: int) -> None:
    assert backoff_ms(policy(1, 100.0, 30 * DAY_MS), tries, random=NoDice()) == 30 * DAY_MS


def test_a_first_wait_beyond_the_longest_is_the_longest() -> None:
    assert backoff_ms(policy(5_000, 2.0, 1_000), 1, random=NoDice()) == 1_000


def test_a_confirmed_attempt_is_delivered(lead: Event) -> None:
    assert attempted(lead, None) == Decision("delivered", NOW_MS)


def test_a_refused_event_is_dead_with_its_reason(lead: Event) -> None:
    assert attempted(lead, Refused("status 422")) == Decision("dead", NOW_MS, "status 422")


def test_a_temporary_failure_is_retried_after_the_wait(lead: Event) -> None:
    decision = attempted(lead, Temporary("status 500"), attempts=3)
    assert decision == Decision("retry", NOW_MS + 8_000, "status 500")


@pytest.mark.parametrize("days", [0, 1, 1000])
def test_a_misconfigured_sink_keeps_its_deliveries_for_any_time(lead: Event, days: int) -> None:
    error = Misconfigured("status 401")
    decision = attempted(lead, error, attempts=50, first_ms=NOW_MS - days * DAY_MS)
    assert (decision.result, decision.reason) == ("parked", "status 401")
    assert STATUS_AFTER[decision.result] is Status.PENDING


@pytest.mark.parametrize(
    ("asked_ms", "wait_ms"),
    [
        (None, 1_000),
        (0, 1_000),
        (999, 1_000),
        (30_000, 30_000),
        (RETRY_AFTER_CAP_MS, RETRY_AFTER_CAP_MS),
        (RETRY_AFTER_CAP_MS + 1, RETRY_AFTER_CAP_MS),
        (10**15, RETRY_AFTER_CAP_MS),
        (-5_000, 1_000),
    ],
)
def test_retry_after_is_a_floor_with_a_cap(lead: Event, asked_ms: int | None, wait_ms: int) -> None:
    decision = attempted(lead, Temporary("status 429", retry_after_ms=asked_ms))
    assert decision.due_ms == NOW_MS + wait_ms


def test_an_error_of_the_base_class_is_temporary(lead: Event) -> None:
    assert attempted(lead, SinkError("odd")) == Decision("retry", NOW_MS + 1_000, "odd")


@pytest.mark.parametrize(
    ("age_ms", "result"), [(3 * DAY_MS - 1, "retry"), (3 * DAY_MS, "dead"), (9 * DAY_MS, "dead")]
)
def test_a_delivery_is_given_up_after_this_time_since_its_first_attempt(
    lead: Event, age_ms: int, result: str
) -> None:
    decision = attempted(lead, Temporary("status 500"), attempts=9, first_ms=NOW_MS - age_ms)
    assert decision.result == result
    assert decision.reason == ("gave up: status 500" if result == "dead" else "status 500")


def test_time_in_the_backlog_does_not_count_towards_giving_up(lead: Event) -> None:
    late_ms = lead.received_ms + 30 * DAY_MS
    assert attempted(lead, Temporary("status 500"), now_ms=late_ms).result == "retry"


def test_with_give_up_after_zero_the_first_failure_is_the_last(lead: Event) -> None:
    delivery = Delivery(seq=1, sink="crm", event=lead, attempts=0, first_attempt_ms=None)
    decision = decide(
        delivery,
        Temporary("status 500"),
        policy(1_000, 2.0, HOUR_MS, 0),
        standing="untried",
        probing=False,
        started_ms=NOW_MS,
        now_ms=NOW_MS,
        random=NoDice(),
    )
    assert decision == Decision("dead", NOW_MS, "gave up: status 500")


@given(
    attempts=st.integers(0, 10_000),
    age_ms=st.integers(-DAY_MS, 10 * DAY_MS),
    asked_ms=st.none() | st.integers(-(10**12), 10**12),
    random=st.randoms(use_true_random=False),
)
def test_a_retry_is_never_due_before_now_nor_too_far_in_the_future(
    attempts: int, age_ms: int, asked_ms: int | None, random: Random
) -> None:
    event = Event(source="a", id="1", kind="b", created_at=None, received_ms=0, body=b"")
    error = Temporary("status 500", retry_after_ms=asked_ms)
    decision = attempted(event, error, attempts=attempts, first_ms=NOW_MS - age_ms, random=random)
    assert decision.result == ("dead" if age_ms >= 3 * DAY_MS else "retry")
    assert NOW_MS <= decision.due_ms <= NOW_MS + HOUR_MS * (1 + JITTER)


def test_an_event_is_suspect_if_its_sink_accepted_another_since_its_failure(lead: Event) -> None:
    untried = Delivery(seq=1, sink="crm", event=lead, attempts=0, first_attempt_ms=None)
    tried = replace(untried, tries=1, tried_ms=NOW_MS)
    assert standing(untried, NOW_MS) == "untried"
    assert [standing(tried, taken_ms) for taken_ms in (None, NOW_MS - 1, NOW_MS)] == [
        "tried",
        "tried",
        "suspect",
    ]
    # An earlier version did not record the time of the last attempt.
    assert standing(replace(tried, tried_ms=None), NOW_MS) == "tried"


def test_an_attempt_blamed_on_the_sink_does_not_count_and_is_due_within_a_minute(
    lead: Event,
) -> None:
    waits = []
    for tries in range(8):
        decision = attempted(lead, Misconfigured("status 401"), tries=tries)
        assert (decision.result, decision.counts) == ("parked", False)
        waits.append(decision.due_ms - NOW_MS)
        probe = attempted(lead, Temporary("status 500"), tries=tries, probing=True)
        assert probe == Decision("retry", decision.due_ms, "status 500", counts=False)
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, PROBE_MAX_MS, PROBE_MAX_MS]


def test_a_failed_attempt_of_a_suspect_counts_even_as_a_probe(lead: Event) -> None:
    for error in (Temporary("status 500"), Misconfigured("status 403")):
        decision = attempted(lead, error, standing="suspect", probing=True, attempts=1)
        assert decision == Decision("retry", NOW_MS + 2_000, error.reason)


def test_a_probe_gives_up_only_deliveries_with_an_earlier_attempt(lead: Event) -> None:
    error = Temporary("status 500")
    never = attempted(lead, error, now_ms=NOW_MS + 9 * DAY_MS, probing=True)
    assert (never.result, never.counts) == ("retry", False)
    old_ms = NOW_MS - 3 * DAY_MS
    assert attempted(lead, error, attempts=5, first_ms=old_ms, probing=True).result == "dead"


@pytest.mark.parametrize(
    ("attempts", "age_ms", "result"),
    [
        (SUSPECT_MIN_TRIES - 1, SUSPECT_MIN_AGE_MS, "dead"),
        (SUSPECT_MIN_TRIES - 2, DAY_MS, "retry"),
        (SUSPECT_MIN_TRIES * 9, SUSPECT_MIN_AGE_MS - 1, "retry"),
    ],
)
def test_an_event_refused_by_permission_is_given_up_while_others_are_accepted(
    lead: Event, attempts: int, age_ms: int, result: str
) -> None:
    error = Misconfigured("status 403")
    decision = attempted(
        lead, error, attempts=attempts, first_ms=NOW_MS - age_ms, standing="suspect"
    )
    assert decision.result == result
    if result == "dead":
        assert decision.reason == "gave up, others are taken: status 403"


@pytest.mark.parametrize(
    ("error", "result"),
    [(Refused("no"), "dead"), (Misconfigured("no"), "parked"), (Temporary("no"), "retry")],
)
def test_the_result_of_a_first_failed_attempt_depends_on_its_error(
    error: SinkError, result: str
) -> None:
    assert result_of(error) == result


def test_a_refusal_parks_once_the_destination_refuses_everything() -> None:
    assert result_of(Refused("no"), refuses_all=True) == "parked"
    assert result_of(Temporary("no"), refuses_all=True) == "retry"


def test_what_a_destination_refuses_with_everything_else_waits_until_it_is_given_up(
    lead: Event,
) -> None:
    error = RefusesAll("it refuses every event: status 400", about_event=True)
    first = attempted(lead, error)
    assert (first.result, first.counts) == ("parked", True)
    later = attempted(lead, error, attempts=1, first_ms=NOW_MS - DAY_MS, probing=True)
    assert (later.result, later.counts) == ("parked", False)
    last = attempted(lead, error, attempts=1, first_ms=NOW_MS - 3 * DAY_MS, probing=True)
    assert last.result == "dead"
    assert last.reason == "gave up: it refuses every event: status 400"
