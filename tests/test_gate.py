"""A sink that fails is left alone but for a probe at a time; one that works is held to its rate."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Misconfigured, Refused, SinkError, Temporary
from relay.gate import PATIENCE, PROBE_MAX_S, Gate
from relay.retry import JITTER, RETRY_AFTER_CAP_MS, RetryPolicy
from relay.settings import Rate

FAILED = Temporary("status 500")
PARKED = Misconfigured("status 401")


class NoDice(Random):
    """Always the smallest throw."""

    def random(self) -> float:
        return 0.0


class Walk:
    """A gate, the time, and the sends that are under way."""

    def __init__(self, *, rate: str | None = None, dice: Random | None = None) -> None:
        limit = None if rate is None else Rate.parse(rate)
        self.gate = Gate(RetryPolicy(), limit, dice=dice or NoDice())
        self.now_s = 1_000.0
        self.in_flight: list[float] = []

    @property
    def state(self) -> str:
        return self.gate.state

    @property
    def wait_s(self) -> float:
        return self.gate.wait_s(in_flight=len(self.in_flight), now_s=self.now_s)

    def start(self) -> None:
        assert self.wait_s == 0
        self.gate.started(now_s=self.now_s)
        self.in_flight.append(self.now_s)

    def end(self, error: SinkError | None = None, *, which: int = 0) -> None:
        self.gate.ended(error, started_s=self.in_flight.pop(which), now_s=self.now_s)

    def send(self, error: SinkError | None = None) -> None:
        """Wait until it may, start, and end a moment later."""
        self.now_s += self.wait_s
        self.start()
        self.now_s += 0.01
        self.end(error)

    def close(self) -> None:
        for _ in range(PATIENCE):
            self.send(FAILED)
        assert self.state == "throttled"


def test_a_new_gate_is_open_to_any_number_at_once() -> None:
    walk = Walk()
    for _ in range(100):
        walk.start()
    assert (walk.state, walk.gate.probe_at_s) == ("active", None)


def allowed(walk: Walk, sends: int) -> int:
    return walk.gate.allows(sends, in_flight=len(walk.in_flight), now_s=walk.now_s)


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
    walk.gate.pause()
    assert allowed(walk, 64) == 0


def test_failures_in_a_row_close_the_gate_when_patience_is_over() -> None:
    walk = Walk()
    for _ in range(PATIENCE - 1):
        walk.send(FAILED)
        assert (walk.state, walk.wait_s) == ("active", 0)
    walk.send(FAILED)
    assert walk.state == "throttled"
    assert walk.wait_s == pytest.approx(1)


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
def test_an_answer_in_between_starts_the_count_again(relief: SinkError | None) -> None:
    walk = Walk()
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            walk.send(FAILED)
        walk.send(relief)
    assert walk.state == "active"


def test_one_probe_goes_through_at_a_time() -> None:
    walk = Walk()
    walk.close()
    walk.now_s += walk.wait_s
    walk.start()
    assert walk.wait_s == math.inf
    walk.now_s += 1_000
    assert walk.wait_s == math.inf


def test_the_waits_between_probes_grow_up_to_their_bound() -> None:
    walk = Walk()
    walk.close()
    waits = []
    for _ in range(9):
        waits.append(walk.wait_s)
        walk.send(FAILED)
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, PROBE_MAX_S, PROBE_MAX_S, PROBE_MAX_S])


@pytest.mark.parametrize("relief", [None, Refused("status 422")])
@pytest.mark.parametrize("trouble", [FAILED, PARKED])
def test_a_probe_that_is_answered_opens_the_gate(
    trouble: SinkError, relief: SinkError | None
) -> None:
    walk = Walk()
    walk.close()
    walk.send(trouble)
    walk.send(relief)
    assert (walk.state, walk.wait_s, walk.gate.probe_at_s) == ("active", 0, None)


def test_after_a_recovery_the_waits_begin_anew() -> None:
    walk = Walk()
    walk.close()
    for _ in range(6):
        walk.send(FAILED)
    walk.send()
    walk.close()
    assert walk.wait_s == pytest.approx(1)


def test_one_misconfigured_answer_parks_the_sink() -> None:
    walk = Walk()
    walk.send(PARKED)
    assert walk.state == "parked"
    assert walk.wait_s == pytest.approx(1)


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
    walk.now_s += 1
    for _ in range(PATIENCE):
        walk.end(FAILED)
    probe_at_s = walk.gate.probe_at_s
    while walk.in_flight:
        walk.now_s += 0.01
        walk.end(late)
    assert (walk.state, walk.gate.probe_at_s) == ("throttled", probe_at_s)


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


@given(
    rate=st.sampled_from([None, "1/s", "100/s", "1/h"]),
    dice=st.randoms(use_true_random=False),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    None,
                    FAILED,
                    FAILED,
                    PARKED,
                    Refused("no"),
                    Temporary("later", retry_after_ms=5_000),
                    Temporary("later", retry_after_ms=-1),
                ]
            ),
            st.integers(0, 9),
            st.floats(0, 100),
        ),
        max_size=60,
    ),
)
def test_a_gate_that_is_not_open_lets_through_one_at_a_time_and_never_waits_below_zero(
    rate: str | None, dice: Random, steps: list[tuple[SinkError | None, int, float]]
) -> None:
    walk = Walk(rate=rate, dice=dice)
    for error, which, pause_s in steps:
        walk.now_s += pause_s
        assert walk.wait_s >= 0
        while walk.wait_s == 0 and len(walk.in_flight) < 8:
            assert walk.state == "active" or not walk.in_flight
            walk.start()
        if walk.in_flight:
            walk.end(error, which=which % len(walk.in_flight))
        if not walk.in_flight:
            longest = max(PROBE_MAX_S, 5) * (1 + JITTER) + (3600 if rate else 0)
            assert walk.wait_s <= longest
        assert (walk.gate.probe_at_s is None) == (walk.state == "active")


def test_a_paused_gate_lets_nothing_through_and_still_learns() -> None:
    walk = Walk()
    walk.start()
    walk.gate.pause()
    assert (walk.state, walk.wait_s, walk.gate.probe_at_s) == ("paused", math.inf, None)
    walk.end(Misconfigured("gone"))
    assert walk.state == "paused"
    walk.gate.resume()
    assert walk.state == "parked"
    assert 0 < walk.wait_s < math.inf
