"""A failing sink gets only probes; a working one is held to its rate."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.config_values import Rate
from relay.core.errors import (
    Misconfigured,
    Refused,
    RefusesAll,
    SinkError,
    Temporary,
)
from relay.core.retry import (
    FAILURE_THRESHOLD,
    JITTER,
    RETRY_AFTER_CAP_MS,
    RetryPolicy,
    Standing,
)
from relay.core.sink_status import State
from relay.delivery.circuit_breaker import (
    PROBE_MAX_S,
    ROUND_MAX,
    ROUND_WAIT_S,
    STABLE_AFTER_S,
    CircuitBreaker,
    Ticket,
)
from tests.delivery.dispatching import Certain

FAILED = Temporary("connection refused")
PARKED = Misconfigured("the certificate does not verify")
FAULT = Temporary("status 500", about_event=True)
FORBIDDEN = Misconfigured("status 403", about_event=True)


class Walk:
    """A circuit breaker, a clock, and the sends in flight."""

    def __init__(self, *, rate: str | None = None, random: Random | None = None) -> None:
        limit = None if rate is None else Rate.parse(rate)
        self.breaker = CircuitBreaker(RetryPolicy(), limit, random=random or Certain())
        self.now_s = 1_000.0
        self.in_flight: list[tuple[Ticket, Standing, int]] = []
        self._events = 0

    @property
    def state(self) -> str:
        return self.breaker.state

    @property
    def wait_s(self) -> float:
        """Seconds until anything may start."""
        return min(self.breaker.wait(in_flight=len(self.in_flight), now_s=self.now_s))

    @property
    def tried_wait_s(self) -> float:
        return self.breaker.wait(in_flight=len(self.in_flight), now_s=self.now_s).tried_s

    def start(self, standing: Standing = "untried", *, event: int | None = None) -> None:
        """Start a send, of a new event unless one is given."""
        room = self.breaker.room(1, in_flight=len(self.in_flight), now_s=self.now_s)
        untried = int(standing == "untried")
        assert room.untried if untried else room.tried
        ticket = self.breaker.start(untried=untried, tried=1 - untried, now_s=self.now_s)
        self._events += 1
        self.in_flight.append((ticket, standing, self._events if event is None else event))

    def end(self, error: SinkError | None = None, *, which: int = 0) -> None:
        ticket, standing, event = self.in_flight.pop(which)
        self.breaker.record(error, ticket, event=event, standing=standing, now_s=self.now_s)

    def send(
        self,
        error: SinkError | None = None,
        standing: Standing = "untried",
        *,
        event: int | None = None,
    ) -> None:
        """Wait until a send may start, start it, and end it 10 ms later."""
        self.now_s += self.wait_s if standing == "untried" else self.tried_wait_s
        self.start(standing, event=event)
        self.now_s += 0.01
        self.end(error)

    def trip(self, error: SinkError = FAILED) -> None:
        for _ in range(FAILURE_THRESHOLD):
            self.send(error)
        assert self.state == "throttled"

    def fail_round(self, error: SinkError) -> int:
        """Fail the next whole round of deliveries never tried; return its size."""
        self.now_s += self.breaker.wait(in_flight=0, now_s=self.now_s).untried_s
        size = allowed(self, ROUND_MAX * 2)
        for _ in range(size):
            self.start()
        assert allowed(self, 1) == 0
        self.now_s += 0.01
        for _ in range(size):
            self.end(error)
        return size


def test_a_new_breaker_allows_any_number_at_once() -> None:
    walk = Walk()
    for _ in range(100):
        walk.start()
    assert (walk.state, walk.breaker.probe_at_s) == ("active", None)


def allowed(walk: Walk, sends: int) -> int:
    """Number of deliveries never tried that may start."""
    return walk.breaker.room(sends, in_flight=len(walk.in_flight), now_s=walk.now_s).untried


def test_an_untripped_breaker_allows_every_send() -> None:
    walk = Walk()
    assert allowed(walk, 64) == 64
    walk.start()
    assert allowed(walk, 64) == 64
    assert allowed(walk, 0) == 0


def test_a_rate_allows_one_send_at_a_time() -> None:
    walk = Walk(rate="10/s")
    assert (allowed(walk, 64), allowed(walk, 0)) == (1, 0)
    walk.start()
    assert allowed(walk, 64) == 0
    walk.now_s += 0.1
    assert allowed(walk, 64) == 1


def test_a_tripped_breaker_allows_one_probe_and_a_paused_one_nothing() -> None:
    walk = Walk()
    walk.trip()
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
def test_consecutive_failures_trip_the_breaker_at_the_threshold(
    error: SinkError,
) -> None:
    walk = Walk()
    for _ in range(FAILURE_THRESHOLD - 1):
        walk.send(error)
        assert (walk.state, walk.wait_s) == ("active", 0)
    walk.send(error)
    assert walk.state == "throttled"
    assert walk.wait_s == pytest.approx(1)


def test_repeated_failures_of_one_event_do_not_trip_the_breaker() -> None:
    walk = Walk()
    walk.send()
    for error in (FAULT, FORBIDDEN):
        walk.send(error, event=7)
        for _ in range(3 * FAILURE_THRESHOLD):
            walk.send(error, "tried", event=7)
    assert walk.state == "active"


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_failures_of_several_events_trip_it_also_when_they_are_retries(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.send()
    for event in range(FAILURE_THRESHOLD - 1):
        walk.send(error, event=event)
        walk.send(error, "tried", event=event)
    assert walk.state == "active"
    walk.send(error, "tried", event=FAILURE_THRESHOLD)
    assert walk.state != "active"


def test_an_unreachable_destination_trips_it_even_for_a_single_event() -> None:
    walk = Walk()
    for _ in range(FAILURE_THRESHOLD):
        assert walk.state == "active"
        walk.send(FAILED, "tried", event=7)
    assert walk.state == "throttled"


@pytest.mark.parametrize("error", [FAILED, PARKED, FAULT, FORBIDDEN])
def test_failures_of_suspect_events_do_not_trip_the_breaker(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.send()
    for _ in range(3 * FAILURE_THRESHOLD):
        walk.send(error, "suspect")
    assert walk.state == "active"


@pytest.mark.parametrize(
    ("kind", "failures", "state"),
    [(Misconfigured, 1, "parked"), (Temporary, FAILURE_THRESHOLD, "throttled")],
)
def test_what_was_not_sent_is_the_sinks_failure_even_where_only_suspects_are_left(
    kind: type[SinkError], failures: int, state: State
) -> None:
    walk = Walk()
    walk.send()
    for _ in range(failures):
        assert walk.state == "active"
        walk.send(kind("no token", unsent=True), "suspect")
    assert walk.state == state
    walk.send(Misconfigured("no token", unsent=True), "suspect")
    assert walk.state == "parked"


@pytest.mark.parametrize("standing", ["untried", "tried"])
def test_what_cannot_be_sent_says_nothing_of_the_destination(standing: Standing) -> None:
    walk = Walk()
    for _ in range(FAILURE_THRESHOLD - 1):
        walk.send(FAILED)
        walk.send(Refused("the template fails", unsent=True))
    walk.send(FAILED)
    assert walk.state == "throttled"
    walk.now_s += walk.wait_s if standing == "untried" else walk.tried_wait_s
    walk.start(standing)
    walk.end(Refused("the template fails", unsent=True))
    assert walk.state == "throttled"
    # The next event is the probe in its place.
    assert (walk.wait_s if standing == "untried" else walk.tried_wait_s) == 0
    walk.send(None, standing)
    assert walk.state == "active"


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
def test_an_answer_in_between_resets_the_count(relief: SinkError | None) -> None:
    walk = Walk()
    for _ in range(3):
        for _ in range(FAILURE_THRESHOLD - 1):
            walk.send(FAILED)
        walk.send(relief)
    assert walk.state == "active"


@pytest.mark.parametrize("standing", ["untried", "tried"])
def test_only_one_probe_is_in_flight_at_a_time(standing: Standing) -> None:
    walk = Walk()
    walk.trip()
    walk.now_s += walk.wait_s
    walk.start(standing)
    assert walk.tried_wait_s == math.inf
    if standing == "untried":
        assert walk.wait_s == math.inf
        walk.now_s += 1_000
        assert walk.wait_s == math.inf


@pytest.mark.parametrize("error", [FAILED, FAULT])
def test_the_waits_between_retry_probes_grow_up_to_their_bound(
    error: SinkError,
) -> None:
    walk = Walk()
    walk.trip()
    waits = []
    for _ in range(9):
        waits.append(walk.tried_wait_s)
        walk.send(error, "tried")
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, PROBE_MAX_S, PROBE_MAX_S, PROBE_MAX_S])


def test_an_unreachable_destination_gets_one_untried_probe_at_a_time() -> None:
    walk = Walk()
    walk.trip()
    waits = []
    for _ in range(9):
        waits.append(walk.wait_s)
        assert walk.fail_round(FAILED) == 1
        assert walk.tried_wait_s >= walk.wait_s
    assert waits == pytest.approx([1, 1, 2, 4, 8, 16, 32, PROBE_MAX_S, PROBE_MAX_S])


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_answered_rounds_grow_and_then_the_waits_between_them(error: SinkError) -> None:
    walk = Walk()
    walk.trip(FAULT)
    sizes, waits = [], []
    for _ in range(12):
        waits.append(walk.wait_s)
        sizes.append(walk.fail_round(error))
    assert sizes == [*(2**step for step in range(9)), *[ROUND_MAX] * 3]
    assert waits == pytest.approx([*[ROUND_WAIT_S] * 9, 1, 2, 4])


def test_an_unfinished_round_continues_without_a_wait() -> None:
    walk = Walk()
    walk.trip(FAULT)
    for _ in range(2):
        walk.fail_round(FAULT)
    walk.send(FAULT)
    assert (allowed(walk, 64), walk.wait_s) == (3, 0)


def test_a_retry_probe_does_not_delay_untried_deliveries() -> None:
    walk = Walk()
    walk.trip(FAULT)
    for _ in range(6):
        walk.send(FAULT, "tried")
    assert walk.tried_wait_s > 60 - 1
    assert walk.wait_s == 0
    walk.send()
    assert walk.state == "active"


def test_a_destination_that_stops_answering_gets_single_probes_again() -> None:
    walk = Walk()
    walk.trip(FAULT)
    sizes = [walk.fail_round(error) for error in (FAULT, FAULT, FAILED, FAULT, FAULT)]
    assert sizes == [1, 2, 4, 1, 2]


def test_a_sink_that_fails_again_soon_resumes_with_the_same_round_size() -> None:
    walk = Walk()
    walk.trip(FAULT)
    for _ in range(5):
        walk.fail_round(FAULT)
    walk.send()
    walk.trip(FAULT)
    assert walk.fail_round(FAULT) == 32
    walk.send()
    walk.now_s += STABLE_AFTER_S
    walk.trip(FAULT)
    assert walk.fail_round(FAULT) == 1


@pytest.mark.parametrize("error", [FAULT, FORBIDDEN])
def test_a_failed_probe_of_a_suspect_keeps_the_state(error: SinkError) -> None:
    walk = Walk()
    walk.trip()
    walk.send(error, "suspect")
    assert walk.state == "throttled"


def test_probe_now_overrides_every_wait() -> None:
    walk = Walk()
    walk.send(Temporary("status 429", retry_after_ms=30_000))
    walk.breaker.probe_now()
    assert (walk.wait_s, walk.tried_wait_s, walk.state) == (0, 0, "throttled")
    walk.send(FAILED, "tried")
    assert walk.tried_wait_s == pytest.approx(2)


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
@pytest.mark.parametrize("trouble", [FAILED, PARKED])
def test_an_answered_probe_resets_the_breaker(trouble: SinkError, relief: SinkError | None) -> None:
    walk = Walk()
    walk.trip()
    walk.send(trouble)
    walk.send(relief)
    assert (walk.state, walk.wait_s, walk.breaker.probe_at_s) == ("active", 0, None)


def test_a_recovery_resets_the_waits() -> None:
    walk = Walk()
    walk.trip()
    for _ in range(6):
        walk.send(FAILED)
    walk.send()
    walk.trip()
    assert walk.wait_s == pytest.approx(1)


@pytest.mark.parametrize("standing", ["untried", "tried"])
def test_a_fault_that_no_event_causes_parks_the_sink_at_once(
    standing: Standing,
) -> None:
    walk = Walk()
    walk.send()
    walk.send(PARKED, standing)
    assert walk.state == "parked"
    assert walk.wait_s == pytest.approx(1)


def test_a_sink_that_has_delivered_nothing_yet_is_parked_by_one_answer() -> None:
    walk = Walk()
    walk.send(Refused("status 422"))
    walk.send(FORBIDDEN)
    assert walk.state == "parked"


def test_a_sink_that_has_delivered_is_parked_at_the_threshold() -> None:
    walk = Walk()
    walk.send()
    for _ in range(FAILURE_THRESHOLD - 1):
        walk.send(FORBIDDEN)
        assert walk.state == "active"
    walk.send(FORBIDDEN)
    assert walk.state == "parked"


def test_a_throttled_sink_that_turns_out_misconfigured_is_parked_and_vice_versa() -> None:
    walk = Walk()
    walk.trip()
    walk.send(PARKED)
    assert walk.state == "parked"
    walk.send(FAILED)
    assert walk.state == "throttled"


def test_retry_after_trips_the_breaker_for_its_duration() -> None:
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
def test_sends_from_before_the_trip_neither_reset_it_nor_lengthen_the_wait(
    late: SinkError | None,
) -> None:
    walk = Walk()
    for _ in range(FAILURE_THRESHOLD + 10):
        walk.start()
    for _ in range(FAILURE_THRESHOLD):
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
def test_a_tripped_breaker_allows_one_retry_at_a_time_and_always_a_next_probe(
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
            if walk.breaker.is_tripped:
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


def test_a_paused_breaker_blocks_all_sends_and_still_records_outcomes() -> None:
    walk = Walk()
    walk.start()
    walk.breaker.pause()
    assert (walk.state, walk.wait_s, walk.breaker.probe_at_s) == ("paused", math.inf, None)
    walk.end(Misconfigured("gone"))
    assert walk.state == "paused"
    walk.breaker.resume()
    assert walk.state == "parked"
    assert 0 < walk.wait_s < math.inf


def test_a_destination_that_refuses_everything_parks_its_sink_at_once() -> None:
    walk = Walk()
    walk.send()
    walk.send(RefusesAll("it refuses every event: status 400", about_event=True))
    assert walk.state == "parked"


@pytest.mark.parametrize("state", ["parked", "throttled"])
def test_a_sink_begins_in_the_state_in_which_it_was_left_and_is_probed_at_once(
    state: State,
) -> None:
    walk = Walk()
    walk.breaker.restore(state)
    assert (walk.state, walk.wait_s, allowed(walk, 10)) == (state, 0.0, 1)
    walk.send()
    assert walk.state == "active"
