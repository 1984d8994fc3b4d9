"""Flows of scripted backlogs, second by second."""

from collections.abc import Callable
from random import Random

import pytest

from relay.core.backlog_trend import BacklogTrend, Sample
from relay.core.sink_status import Flow

START_MS = 1_700_000_000_000
DAY_S = 86_400.0


class ScriptedSink:
    """A queue with an inflow and a capacity, both in deliveries a minute."""

    def __init__(
        self,
        *,
        pending: int = 0,
        give_up_after_s: float = 3 * DAY_S,
        gathers_for_s: float = 0.0,
    ) -> None:
        self.trend = BacklogTrend(gathers_for_s=gathers_for_s)
        self.pending = pending
        self.retrying = 0
        self.is_active = True
        self.give_up_after_s = give_up_after_s
        self.now_s = 0
        self.growing_s = 0
        """Seconds in which it was found to grow."""
        self.changes = 0
        """How often that began or ended."""
        self._ended = 7
        self._due_in = self._due_out = 0.0

    def run(
        self,
        minutes: float,
        *,
        into: float | Callable[[float], float] = 0.0,
        out: float = 0.0,
    ) -> Flow | None:
        """Let time pass; `into` may be a function of the minute."""
        for _ in range(round(minutes * 60)):
            self._second(into(self.now_s / 60) if callable(into) else into, out)
        return self.trend.flow

    def gather(self, *, every_s: int, at_most: int, into: float, minutes: float) -> Flow | None:
        """Let time pass in which all that waits goes out at once, as far as it fits."""
        for _ in range(round(minutes * 60)):
            if self.now_s % every_s == every_s - 1:
                sent = min(self.pending, at_most)
                self.pending -= sent
                self._ended += sent
            self._second(into, 0)
        return self.trend.flow

    def skip(self, seconds: int) -> None:
        """Let time pass that nobody samples."""
        self.now_s += seconds

    def _second(self, into: float, out: float) -> None:
        before = self._is_growing
        self.now_s += 1
        self._due_in += into / 60
        arrived = int(self._due_in)
        self._due_in -= arrived
        self.pending += arrived
        self._due_out = min(self._due_out + out / 60, self.pending - self.retrying)
        sent = int(self._due_out)
        self._due_out -= sent
        self.pending -= sent
        self._ended += sent
        self.trend.add(
            Sample(
                float(self.now_s),
                START_MS + self.now_s * 1000,
                self.pending,
                self._ended,
                self.retrying,
            ),
            is_active=self.is_active,
            give_up_after_s=self.give_up_after_s,
        )
        self.growing_s += self._is_growing
        self.changes += before != self._is_growing

    @property
    def _is_growing(self) -> bool:
        return self.trend.flow is not None and self.trend.flow.growing_since_ms is not None


def known(flow: Flow | None) -> Flow:
    assert flow is not None
    return flow


def test_nothing_is_known_before_a_minute_was_seen() -> None:
    sink = ScriptedSink(pending=500)
    assert sink.run(0.99, into=168, out=30) is None
    assert sink.run(0.2, into=168, out=30) is not None


def test_an_idle_sink_has_no_flow_and_nothing_to_end() -> None:
    flow = known(ScriptedSink().run(20))
    assert (flow.in_per_minute, flow.out_per_minute, flow.end_s) == (0, 0, 0)
    assert flow.direction == "steady"
    assert not flow.falls_behind


def test_a_steady_sink_is_steady_however_long() -> None:
    sink = ScriptedSink(pending=5)
    flow = known(sink.run(60, into=120, out=120))
    assert flow.in_per_minute == pytest.approx(120, abs=1)
    assert flow.out_per_minute == pytest.approx(120, abs=1)
    assert flow.direction == "steady"
    assert flow.end_s == pytest.approx(2.5, abs=0.5)
    assert not sink.growing_s


def test_a_draining_backlog_ends_when_what_waits_has_gone_out_faster_than_more_came() -> None:
    flow = known(ScriptedSink(pending=30_309).run(10, out=30))
    assert flow.out_per_minute == pytest.approx(30, abs=0.5)
    assert flow.in_per_minute == 0
    assert flow.direction == "draining"
    assert flow.end_s == pytest.approx(30_009 / 30 * 60, rel=0.01)
    flow = known(ScriptedSink(pending=5000).run(10, into=100, out=300))
    assert flow.end_s == pytest.approx(3000 / 200 * 60, rel=0.01)
    assert flow.wait_s == pytest.approx(3000 / 300 * 60, rel=0.01)


def test_a_backlog_that_grew_for_ten_minutes_grows_since_ten_minutes() -> None:
    sink = ScriptedSink()
    assert known(sink.run(9.9, into=168, out=30)).growing_since_ms is None
    flow = known(sink.run(0.3, into=168, out=30))
    assert flow.growing_since_ms == pytest.approx(START_MS, abs=15_000)
    assert flow.direction == "growing"
    assert flow.end_s is None
    assert flow.in_per_minute == pytest.approx(168, abs=2)
    assert flow.out_per_minute == pytest.approx(30, abs=1)
    assert flow.wait_s == pytest.approx(sink.pending / 30 * 60, rel=0.02)
    begun = flow.growing_since_ms
    assert known(sink.run(180, into=168, out=30)).growing_since_ms == begun
    assert sink.changes == 1


def test_a_growing_backlog_has_no_end_even_while_it_is_short() -> None:
    flow = known(ScriptedSink().run(6, into=168, out=145))
    assert flow.wait_s is not None
    assert flow.wait_s < 60
    assert flow.end_s is None


def test_a_burst_is_no_growth_while_it_drains() -> None:
    sink = ScriptedSink()
    sink.run(10, into=10, out=100)
    sink.pending += 1000
    assert known(sink.run(2, into=10, out=30)).direction == "growing"
    assert known(sink.run(7, into=10, out=30)).direction == "draining"
    sink.run(60, into=10, out=30)
    assert not sink.growing_s


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7, 9, 13])
def test_bursts_that_are_worked_off_each_time_are_no_growth(every: int) -> None:
    sink = ScriptedSink()
    for _ in range(90 // every):
        sink.pending += 100 * every
        sink.run(every, out=101)
    assert not sink.growing_s


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_bursts_beyond_what_goes_out_are_growth_that_does_not_flap(every: int) -> None:
    sink = ScriptedSink()
    sink.run(5, out=300)
    for _ in range(120 // every):
        sink.pending += 300 * every
        sink.run(every, into=0, out=250)
    assert sink.growing_s
    assert sink.changes == 1


def test_arrivals_at_random_at_the_edge_of_what_goes_out_are_seldom_growth() -> None:
    random = Random(7)
    sink = ScriptedSink(pending=200)
    sink.run(8 * 60, into=lambda _: 60.0 * (random.random() < 0.5), out=30)
    assert sink.growing_s < 0.02 * 8 * 3600


def test_growth_ends_once_the_backlog_clearly_drains_and_begins_after_ten_minutes_more() -> None:
    sink = ScriptedSink()
    sink.run(60, into=168, out=30)
    assert known(sink.run(3, into=168, out=600)).growing_since_ms is None
    sink.run(1, into=168, out=600)
    assert sink.changes == 2
    assert known(sink.run(7, into=168, out=30)).growing_since_ms is None
    assert known(sink.run(5, into=168, out=30)).growing_since_ms is not None
    assert sink.changes == 3


def test_growth_that_barely_pauses_goes_on() -> None:
    sink = ScriptedSink()
    sink.run(20, into=168, out=100)
    for _ in range(10):
        sink.run(2, into=100, out=100)
        sink.run(3, into=168, out=100)
    assert sink.changes == 1


@pytest.mark.parametrize("minutes", [6, 120])
def test_a_paused_sink_takes_in_and_does_not_fall_behind(minutes: int) -> None:
    sink = ScriptedSink(give_up_after_s=60)
    sink.run(20, into=60, out=100)
    sink.is_active = False
    flow = known(sink.run(minutes, into=60))
    assert flow.in_per_minute == pytest.approx(60, abs=1)
    assert flow.out_per_minute == pytest.approx(0, abs=1)
    assert flow.wait_s is None
    sink.is_active, sink.give_up_after_s = True, DAY_S
    sink.run(120, into=60, out=100)
    assert not sink.growing_s


@pytest.mark.parametrize("every_s", [60, 240, 599, 600, 603])
@pytest.mark.parametrize("into", [0.5, 2, 25])
def test_what_a_digest_gathers_is_no_growth(every_s: int, into: float) -> None:
    sink = ScriptedSink(gathers_for_s=every_s)
    assert sink.gather(every_s=every_s, at_most=256, into=into, minutes=every_s / 31) is None
    flow = known(sink.gather(every_s=every_s, at_most=256, into=into, minutes=240))
    assert not sink.growing_s
    assert flow.direction != "growing"
    assert flow.in_per_minute == pytest.approx(into, rel=0.1, abs=0.2)
    assert flow.wait_s is not None
    assert not flow.falls_behind


def test_more_than_a_digest_can_hold_is_growth_after_four_of_them() -> None:
    sink = ScriptedSink(gathers_for_s=600)
    assert not known(sink.gather(every_s=600, at_most=30, into=6, minutes=39)).falls_behind
    flow = known(sink.gather(every_s=600, at_most=30, into=6, minutes=61))
    assert flow.growing_since_ms is not None
    assert sink.changes == 1
    assert flow.out_per_minute == pytest.approx(3, abs=0.1)


def test_retries_that_are_not_due_are_no_growth() -> None:
    sink = ScriptedSink()
    for _ in range(60):
        sink.run(1, into=100, out=90)
        sink.retrying = sink.pending
    assert not sink.growing_s
    sink.retrying = 0
    sink.run(15, into=100, out=60)
    assert sink.growing_s


def test_a_destination_that_is_down_for_a_while_leaves_no_growth_behind() -> None:
    sink = ScriptedSink()
    sink.run(20, into=60, out=200)
    sink.is_active = False
    assert not known(sink.run(30, into=60)).falls_behind
    sink.is_active = True
    sink.run(30, into=60, out=200)
    assert not sink.growing_s


def test_a_large_replay_that_is_opened_step_by_step_is_no_growth() -> None:
    sink = ScriptedSink()
    sink.run(5)
    sink.pending += 500  # the replayer keeps this many open
    flow = known(sink.run(60, into=120, out=120))
    assert flow.in_per_minute == flow.out_per_minute == pytest.approx(120, abs=1)
    assert not sink.growing_s


def test_retries_that_are_not_due_take_no_time_of_those_that_are() -> None:
    sink = ScriptedSink(pending=200, give_up_after_s=3600)
    sink.retrying = 200
    flow = known(sink.run(30, into=1, out=60))
    assert flow.retrying == 200
    assert flow.wait_s == pytest.approx(0, abs=2)
    assert not flow.falls_behind


@pytest.mark.parametrize("reason", ["discarded", "cancelled"])
def test_what_another_relay_discards_goes_out(reason: str) -> None:
    sink = ScriptedSink(pending=5000)
    sink.run(10, out=30)
    sink.pending -= {"discarded": 4000, "cancelled": 1000}[reason]
    flow = known(sink.run(1, out=30))
    assert flow.in_per_minute == 0
    assert flow.out_per_minute > 200


def test_a_backlog_takes_too_long_until_it_is_clearly_shorter() -> None:
    sink = ScriptedSink(pending=1950, give_up_after_s=3600)
    flow = known(sink.run(2, out=30))
    assert flow.too_long_since_ms == pytest.approx(START_MS + 60_000, abs=10_000)
    shorter = known(sink.run(6, out=30))
    assert shorter.wait_s is not None
    assert shorter.wait_s < 3600
    assert shorter.too_long_since_ms == flow.too_long_since_ms
    assert known(sink.run(5, out=30)).too_long_since_ms is None


def test_a_backlog_that_takes_too_long_still_does_while_nothing_goes_out() -> None:
    sink = ScriptedSink(pending=4000, give_up_after_s=3600)
    since_ms = known(sink.run(5, out=30)).too_long_since_ms
    assert since_ms is not None
    stuck = known(sink.run(8))
    assert (stuck.wait_s, stuck.too_long_since_ms) == (None, since_ms)
    assert known(sink.run(5, out=30)).too_long_since_ms == since_ms


def test_a_pause_clears_what_took_too_long() -> None:
    sink = ScriptedSink(pending=4000, give_up_after_s=3600)
    sink.run(5, out=30)
    sink.is_active = False
    assert known(sink.run(1)).too_long_since_ms is None


def test_nothing_is_known_after_a_time_without_samples() -> None:
    sink = ScriptedSink()
    sink.run(30, into=168, out=30)
    sink.skip(61)
    assert sink.run(0.5, into=168, out=30) is None
    assert not known(sink.run(5, into=168, out=30)).falls_behind


def test_memory_is_bounded() -> None:
    sink = ScriptedSink()
    sink.run(120, into=10, out=10)
    assert len(sink.trend._samples) <= 123
