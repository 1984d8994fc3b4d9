"""A sink that fails is left alone but for probes; one that works is held to its rate."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.config_values import Rate
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.retry import JITTER, RETRY_AFTER_CAP_MS, RetryPolicy, Standing
from relay.delivery.circuit_breaker import (
    CALM_S,
    PATIENCE,
    PROBE_MAX_S,
    ROUND_MAX,
    ROUND_WAIT_S,
    CircuitBreaker,
    Ticket,
)

FAILED = Temporary("connection refused")
PARKED = Misconfigured("the certificate does not verify")
FAULT = Temporary("status 500", about_event=True)
FORBIDDEN = Misconfigured("status 403", about_event=True)


class NoDice(Random):
    """Always the smallest throw."""

    def random(self) -> float:
        return 0.0


class Walk:
    """A gate, the time, and the sends that are under way."""

    def __init__(self, *, rate: str | None = None, random: Random | None = None) -> None:
        limit = None if rate is None else Rate.parse(rate)
        self.breaker = CircuitBreaker(RetryPolicy(), limit, random=random or NoDice())
        self.now_s = 1_000.0
        self.in_flight: list[tuple[Ticket, Standing, int]] = []
        self._events = 0

    @property
    def state(self) -> str:
        return self.breaker.state

    @property
    def wait_s(self) -> float:
        """How long until something may start."""
        return min(self.breaker.wait(in_flight=len(self.in_flight), now_s=self.now_s))

    @property
    def tried_wait_s(self) -> float:
        return self.breaker.wait(in_flight=len(self.in_flight), now_s=self.now_s).tried_s

    def start(self, standing: Standing = "untried", *, event: int | None = None) -> None:
        """Start a send, of an event of its own unless one is given."""
        room = self.breaker.room(1, in_flight=len(self.in_flight), now_s=self.now_s)
        untried = int(standing == "untried")
        assert room.untried if untried else room.tried
        ticket = self.breaker.started(untried=untried, tried=1 - untried, now_s=self.now_s)
        self._events += 1
        self.in_flight.append((ticket, standing, self._events if event is None else event))

    def end(self, error: SinkError | None = None, *, which: int = 0) -> None:
        ticket, standing, event = self.in_flight.pop(which)
        self.breaker.ended(error, ticket, event=event, standing=standing, now_s=self.now_s)

    def send(
        self,
        error: SinkError | None = None,
        standing: Standing = "untried",
        *,
        event: int | None = None,
    ) -> None:
        """Wait until it may, start, and end a moment later."""
        self.now_s += self.wait_s if standing == "untried" else self.tried_wait_s
        self.start(standing, event=event)
        self.now_s += 0.01
        self.end(error)

    def close(self, error: SinkError = FAILED) -> None:
        for _ in range(PATIENCE):
            self.send(error)
        assert self.state == "throttled"

    def fail_round(self, error: SinkError) -> int:
        """Wait for a round of deliveries never tried, and have all fail; how many they were."""
        self.now_s += self.breaker.wait(in_flight=0, now_s=self.now_s).untried_s
        size = allowed(self, ROUND_MAX * 2)
        for _ in range(size):
            self.start()
        assert allowed(self, 1) == 0
        self.now_s += 0.01
        for _ in range(size):
            self.end(error)
        return size


def test_a_new_gate_is_open_to_any_number_at_once() -> None:
    walk = Walk()
    for _ in range(100):
        walk.start()
    assert (walk.state, walk.breaker.probe_at_s) == ("active", None)


def allowed(walk: Walk, sends: int) -> int:
    """How many deliveries that were never tried may start."""
    return walk.breaker.room(sends, in_flight=len(walk.in_flight), now_s=walk.now_s).untried


def test_an_open_gate_allows_all_that_is_asked_for() -> None:
    walk = Walk()
    assert allowed(walk, 64) == 64
    walk.start()
    assert allowed(walk, 64) == 64
    assert allowed(walk, 0) == 0


def test_a_rate_allows_one_after_the_other() -> None:
    walk = Walk(rate="10/s")
    assert (allowed(walk, 64), allowed(walk, 0)) == (1, 0)
    walk.start()
    assert allowed(walk, 64) == 0
    walk.now_s += 0.1
    assert allowed(walk, 64) == 1


def test_a_gate_that_is_closed_allows_a_probe_alone_and_a_paused_one_nothing() -> None:
    walk = Walk()
    walk.close()
    assert allowed(walk, 64) == 0
    walk.now_s += walk.wait_s
    assert allowed(walk, 64) == 1
    walk.start()
    assert allowed(walk, 64) == 0
    walk.end()
    assert allowed(walk, 64) == 64
    walk.breaker.pause()
    assert allowed(walk, 64) == 0


@pytest.mark.parametrize("error", [FAILED, FAULT])
def test_failures_of_events_in_a_row_close_the_gate_when_patience_is_over(
    error: SinkError,
) -> None:
    walk = Walk()
    for _ in range(PATIENCE - 1):
        walk.send(error)
        assert (walk.state, walk.wait_s) == ("active", 0)
    walk.send(error)
    assert walk.state == "throttled"
    assert walk.wait_s == pytest.approx(1)


def test_one_event_that_is_answered_with_failures_closes_no_gate() -> None:
    walk = Walk()
    walk.send()
    for error in (FAULT, FORBIDDEN):
        walk.send(error, event=7)
        for _ in range(3 * PATIENCE):
            walk.send(error, "tried", event=7)
    assert walk.state == "active"


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_some_events_that_are_answered_with_failures_close_it_also_when_tried_again(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.send()
    for event in range(PATIENCE - 1):
        walk.send(error, event=event)
        walk.send(error, "tried", event=event)
    assert walk.state == "active"
    walk.send(error, "tried", event=PATIENCE)
    assert walk.state != "active"


def test_far_ends_that_do_not_answer_close_it_whichever_event_it_is() -> None:
    walk = Walk()
    for _ in range(PATIENCE):
        assert walk.state == "active"
        walk.send(FAILED, "tried", event=7)
    assert walk.state == "throttled"


@pytest.mark.parametrize("error", [FAILED, PARKED, FAULT, FORBIDDEN])
def test_events_that_failed_while_others_were_taken_tell_nothing_of_the_sink(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.send()
    for _ in range(3 * PATIENCE):
        walk.send(error, "suspect")
    assert walk.state == "active"


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
def test_an_answer_in_between_starts_the_count_again(relief: SinkError | None) -> None:
    walk = Walk()
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            walk.send(FAILED)
        walk.send(relief)
    assert walk.state == "active"


@pytest.mark.parametrize("standing", ["untried", "tried"])
def test_one_probe_goes_through_at_a_time(standing: Standing) -> None:
    walk = Walk()
    walk.close()
    walk.now_s += walk.wait_s
    walk.start(standing)
    assert walk.tried_wait_s == math.inf
    if standing == "untried":
        assert walk.wait_s == math.inf
        walk.now_s += 1_000
        assert walk.wait_s == math.inf


@pytest.mark.parametrize("error", [FAILED, FAULT])
def test_the_waits_between_probes_with_what_has_failed_grow_up_to_their_bound(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.close()
    waits = []
    for _ in range(9):
        waits.append(walk.tried_wait_s)
        walk.send(error, "tried")
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, PROBE_MAX_S, PROBE_MAX_S, PROBE_MAX_S])


def test_a_far_end_that_does_not_answer_is_probed_by_one_that_was_never_tried_at_a_time() -> None:
    walk = Walk()
    walk.close()
    waits = []
    for _ in range(9):
        waits.append(walk.wait_s)
        assert walk.fail_round(FAILED) == 1
        assert walk.tried_wait_s >= walk.wait_s
    assert waits == pytest.approx([1, 1, 2, 4, 8, 16, 32, PROBE_MAX_S, PROBE_MAX_S])


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_rounds_that_are_answered_grow_and_then_the_waits_between_them(error: SinkError) -> None:
    walk = Walk()
    walk.close(FAULT)
    sizes, waits = [], []
    for _ in range(12):
        waits.append(walk.wait_s)
        sizes.append(walk.fail_round(error))
    assert sizes == [*(2**step for step in range(9)), *[ROUND_MAX] * 3]
    assert waits == pytest.approx([*[ROUND_WAIT_S] * 9, 1, 2, 4])


def test_a_round_of_which_something_is_left_goes_on_without_a_wait() -> None:
    walk = Walk()
    walk.close(FAULT)
    for _ in range(2):
        walk.fail_round(FAULT)
    walk.send(FAULT)
    assert (allowed(walk, 64), walk.wait_s) == (3, 0)


def test_a_probe_of_what_has_failed_holds_up_nothing_that_was_never_tried() -> None:
    walk = Walk()
    walk.close(FAULT)
    for _ in range(6):
        walk.send(FAULT, "tried")
    assert walk.tried_wait_s > 60 - 1
    assert walk.wait_s == 0
    walk.send()
    assert walk.state == "active"


def test_a_far_end_that_stops_answering_is_probed_by_one_again() -> None:
    walk = Walk()
    walk.close(FAULT)
    sizes = [walk.fail_round(error) for error in (FAULT, FAULT, FAILED, FAULT, FAULT)]
    assert sizes == [1, 2, 4, 1, 2]


def test_a_sink_that_fails_again_soon_goes_on_with_rounds_as_large() -> None:
    walk = Walk()
    walk.close(FAULT)
    for _ in range(5):
        walk.fail_round(FAULT)
    walk.send()
    walk.close(FAULT)
    assert walk.fail_round(FAULT) == 32
    walk.send()
    walk.now_s += CALM_S
    walk.close(FAULT)
    assert walk.fail_round(FAULT) == 1


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_suspects_that_fail_as_probes_leave_the_state_as_it_is(error: SinkError) -> None:
    walk = Walk()
    walk.close()
    walk.send(error, "suspect")
    assert walk.state == "throttled"


def test_a_probe_at_once_waits_for_nothing() -> None:
    walk = Walk()
    walk.send(Temporary("status 429", retry_after_ms=30_000))
    walk.breaker.probe_now()
    assert (walk.wait_s, walk.tried_wait_s, walk.state) == (0, 0, "throttled")
    walk.send(FAILED, "tried")
    assert walk.tried_wait_s == pytest.approx(2)


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
@pytest.mark.parametrize("trouble", [FAILED, PARKED])
def test_a_probe_that_is_answered_opens_the_gate(
    trouble: SinkError, relief: SinkError | None
) -> None:
    walk = Walk()
    walk.close()
    walk.send(trouble)
    walk.send(relief)
    assert (walk.state, walk.wait_s, walk.breaker.probe_at_s) == ("active", 0, None)


def test_after_a_recovery_the_waits_begin_anew() -> None:
    walk = Walk()
    walk.close()
    for _ in range(6):
        walk.send(FAILED)
    walk.send()
    walk.close()
    assert walk.wait_s == pytest.approx(1)


@pytest.mark.parametrize("standing", ["untried", "tried"])
def test_a_far_end_that_takes_nothing_whatever_the_event_parks_the_sink_at_once(
    standing: Standing,
) -> None:
    walk = Walk()
    walk.send()
    walk.send(PARKED, standing)
    assert walk.state == "parked"
    assert walk.wait_s == pytest.approx(1)


def test_a_sink_that_has_taken_nothing_yet_is_parked_by_one_answer() -> None:
    walk = Walk()
    walk.send(Refused("status 422"))
    walk.send(FORBIDDEN)
    assert walk.state == "parked"


def test_a_sink_that_has_taken_something_is_parked_by_as_many_events_as_patience_has() -> None:
    walk = Walk()
    walk.send()
    for _ in range(PATIENCE - 1):
        walk.send(FORBIDDEN)
        assert walk.state == "active"
    walk.send(FORBIDDEN)
    assert walk.state == "parked"


def test_a_throttled_sink_that_turns_out_misconfigured_is_parked_and_the_other_way_round() -> None:
    walk = Walk()
    walk.close()
    walk.send(PARKED)
    assert walk.state == "parked"
    walk.send(FAILED)
    assert walk.state == "throttled"


def test_retry_after_closes_the_gate_at_once_for_as_long() -> None:
    walk = Walk()
    walk.send(Temporary("status 429", retry_after_ms=30_000))
    assert walk.state == "throttled"
    assert walk.wait_s == pytest.approx(30)


def test_retry_after_is_a_floor_and_is_capped() -> None:
    walk = Walk()
    walk.send(Temporary("status 429", retry_after_ms=1))
    assert walk.wait_s == pytest.approx(1)
    walk.send(Temporary("status 429", retry_after_ms=10**12))
    assert walk.wait_s == pytest.approx(RETRY_AFTER_CAP_MS / 1000)


@pytest.mark.parametrize("late", [None, FAILED, Refused("status 422")])
def test_what_was_sent_before_the_gate_closed_neither_opens_it_nor_lengthens_the_wait(
    late: SinkError | None,
) -> None:
    walk = Walk()
    for _ in range(PATIENCE + 10):
        walk.start()
    for _ in range(PATIENCE):
        walk.end(FAILED)
    probe_at_s = walk.breaker.probe_at_s
    while walk.in_flight:
        walk.now_s += 0.01
        walk.end(late)
    assert (walk.state, walk.breaker.probe_at_s) == ("throttled", probe_at_s)


def test_a_late_failure_does_not_cut_a_retry_after_short() -> None:
    walk = Walk()
    walk.start()
    walk.start()
    walk.now_s += 1
    walk.end(Temporary("status 429", retry_after_ms=30_000))
    walk.end(FAILED)
    assert walk.wait_s == pytest.approx(30)


def test_a_rate_spaces_the_starts_and_saves_nothing_up() -> None:
    walk = Walk(rate="2/s")
    for _ in range(3):
        walk.start()
        assert walk.wait_s == pytest.approx(0.5)
        walk.now_s += walk.wait_s
    walk.now_s += 100
    walk.start()
    assert walk.wait_s == pytest.approx(0.5)


def test_a_probe_waits_for_the_rate_too() -> None:
    walk = Walk(rate="1/m")
    walk.send(PARKED)
    assert walk.wait_s == pytest.approx(60, abs=0.1)


ERRORS: list[SinkError | None] = [
    None,
    *[FAILED, FAULT, FORBIDDEN] * 2,
    PARKED,
    Refused("no"),
    Temporary("later", retry_after_ms=5_000),
    Temporary("later", retry_after_ms=-1),
]
STANDINGS: list[Standing] = ["untried", "untried", "tried", "suspect"]


@given(
    rate=st.sampled_from([None, "1/s", "100/s", "1/h"]),
    random=st.randoms(use_true_random=False),
    steps=st.lists(
        st.tuples(
            st.sampled_from(ERRORS),
            st.sampled_from(STANDINGS),
            st.integers(0, 9),
            st.floats(0, 100),
        ),
        max_size=60,
    ),
)
def test_a_closed_gate_lets_one_retry_through_at_a_time_and_always_something_in_the_end(
    rate: str | None,
    random: Random,
    steps: list[tuple[SinkError | None, Standing, int, float]],
) -> None:
    walk = Walk(rate=rate, random=random)
    for error, standing, which, pause_s in steps:
        walk.now_s += pause_s
        for _ in range(8):
            in_flight = len(walk.in_flight)
            room = walk.breaker.room(8, in_flight=in_flight, now_s=walk.now_s)
            assert min(room) >= 0
            if not walk.breaker.is_open:
                assert room.tried <= 1
                assert room.tried == 0 or in_flight == 0
            if in_flight < 8 and (room.untried if standing == "untried" else room.tried):
                walk.start(standing)
        if walk.in_flight:
            walk.end(error, which=which % len(walk.in_flight))
        wait = walk.breaker.wait(in_flight=len(walk.in_flight), now_s=walk.now_s)
        assert min(wait) >= 0
        if not walk.in_flight:
            longest = max(PROBE_MAX_S, 5) * (1 + JITTER) + (3600 if rate else 0)
            assert max(wait) <= longest
        assert (walk.breaker.probe_at_s is None) == (walk.state == "active")


def test_a_paused_gate_lets_nothing_through_and_still_learns() -> None:
    walk = Walk()
    walk.start()
    walk.breaker.pause()
    assert (walk.state, walk.wait_s, walk.breaker.probe_at_s) == ("paused", math.inf, None)
    walk.end(Misconfigured("gone"))
    assert walk.state == "paused"
    walk.breaker.resume()
    assert walk.state == "parked"
    assert 0 < walk.wait_s < math.inf
