"""A server's clock, estimated from samples of uneven, long and varying round trips."""

from hypothesis import given
from hypothesis import strategies as st

from relay.core.clock import (
    DRIFT_PPM,
    SET_BACK_MS,
    ClockSample,
    ClockSetBack,
    Instant,
    SynchronizedClock,
)
from tests.conftest import NOW_MS, ManualClock

MS = 1_000_000
MINUTE_MS = 60_000


class Server:
    """A server's clock and the way to it, in the time of the test."""

    def __init__(self, *, drift_ppm: int = 0) -> None:
        self.elapsed_ns = 5_000 * MS
        self._set_by_ns = NOW_MS * MS
        self._drift_ppm = drift_ppm
        self.machine = ManualClock()

    def synchronized(self) -> SynchronizedClock:
        return SynchronizedClock(self.machine, elapsed_ns=lambda: self.elapsed_ns)

    @property
    def now_ns(self) -> int:
        drift_ns = self.elapsed_ns * self._drift_ppm // 1_000_000
        return self._set_by_ns + self.elapsed_ns + drift_ns

    def set_by(self, ms: int) -> None:
        self._set_by_ns += ms * MS

    def sample(self, out_ns: int, back_ns: int) -> ClockSample:
        before_ns = self.elapsed_ns
        self.elapsed_ns += out_ns
        server_ns = self.now_ns
        self.elapsed_ns += back_ns
        return ClockSample(before_ns, server_ns, self.elapsed_ns)


def ahead_ms(clock: SynchronizedClock, server: Server) -> float:
    return clock.now_ms() - server.now_ns / MS


way = st.one_of(st.integers(0, 3 * MS), st.integers(0, 4_000 * MS))
trips = st.lists(st.tuples(st.integers(0, 5_000 * MS), way, way), min_size=1, max_size=30)


@given(
    first=st.tuples(st.integers(0, 400 * MS), st.integers(0, 400 * MS)),
    trips=trips,
    drift_ppm=st.integers(-DRIFT_PPM, DRIFT_PPM),
)
def test_time_is_never_wrong_by_more_than_half_a_round_trip_and_never_goes_back(
    first: tuple[int, int], trips: list[tuple[int, int, int]], drift_ppm: int
) -> None:
    server = Server(drift_ppm=drift_ppm)
    clock = server.synchronized()
    begun_ns = server.elapsed_ns
    clock.adopt(server.sample(*first))
    last_ms = clock.now_ms()
    for gap_ns, out_ns, back_ns in trips:
        server.elapsed_ns += gap_ns
        assert clock.now_ms() >= last_ms
        assert clock.adopt(server.sample(out_ns, back_ns)) == 0
        assert clock.now_ms() >= last_ms
        last_ms = clock.now_ms()
        drifted_ms = (server.elapsed_ns - begun_ns) * DRIFT_PPM / 1_000_000 / MS
        assert abs(ahead_ms(clock, server)) <= sum(first) / 2 / MS + drifted_ms + 1


@given(trips=trips, tight=st.tuples(st.integers(0, MS), st.integers(0, MS)))
def test_the_tightest_sample_counts_however_long_the_others_take(
    trips: list[tuple[int, int, int]], tight: tuple[int, int]
) -> None:
    server = Server()
    clock = server.synchronized()
    clock.adopt(server.sample(100 * MS, 700 * MS))
    clock.adopt(server.sample(*tight))
    # A clock that was ahead stands still for as long.
    server.elapsed_ns += SET_BACK_MS * MS
    for gap_ns, out_ns, back_ns in trips:
        server.elapsed_ns += gap_ns
        clock.adopt(server.sample(out_ns, back_ns))
        assert abs(ahead_ms(clock, server)) <= 3


@given(step_ms=st.integers(2 * SET_BACK_MS, 10**9), sign=st.sampled_from((-1, 1)))
def test_a_step_of_the_server_is_followed_at_the_next_short_round_trip(
    step_ms: int, sign: int
) -> None:
    server = Server()
    clock = server.synchronized()
    clock.adopt(server.sample(MS, MS))
    was_set_back = ClockSetBack(clock)
    server.set_by(sign * step_ms)
    assert abs(clock.adopt(server.sample(3 * MS, MS)) - sign * step_ms) <= 5
    assert abs(ahead_ms(clock, server)) <= 3
    assert was_set_back.happened() == (sign < 0)
    assert clock.adopt(server.sample(3 * MS, MS)) == 0


def test_a_step_that_a_long_round_trip_may_explain_is_followed_once_it_is_certain() -> None:
    server = Server()
    clock = server.synchronized()
    clock.adopt(server.sample(MS, MS))
    server.set_by(-2_000)
    assert clock.adopt(server.sample(6_000 * MS, 0)) == 0
    assert clock.adopt(server.sample(MS, MS)) == -2_000


def test_a_small_correction_lets_the_clock_stand_still() -> None:
    server = Server()
    clock = server.synchronized()
    clock.adopt(server.sample(0, 400 * MS))
    server.set_by(-500)
    sample = server.sample(MS, MS)
    before_ms = clock.now_ms()
    assert clock.adopt(sample) == 0
    assert clock.now_ms() == before_ms
    server.elapsed_ns += 1_000 * MS
    assert abs(ahead_ms(clock, server)) <= 2


def test_no_other_thread_sees_the_clock_go_back_during_a_small_correction() -> None:
    server = Server()
    seen: list[int] = []
    looks = False

    def elapsed_ns() -> int:
        nonlocal looks
        if looks:
            # As another thread does at any moment.
            looks = False
            seen.append(clock.now_ms())
            looks = True
        return server.elapsed_ns

    clock = SynchronizedClock(server.machine, elapsed_ns=elapsed_ns)
    clock.adopt(server.sample(0, 400 * MS))
    server.set_by(-500)
    sample = server.sample(MS, MS)
    seen.append(clock.now_ms())
    looks = True
    assert clock.adopt(sample) == 0
    seen.append(clock.now_ms())
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_the_machine_counts_until_the_first_sample_and_not_after_it() -> None:
    server = Server()
    server.machine.ms = NOW_MS - 10 * MINUTE_MS
    clock = server.synchronized()
    assert clock.now_ms() == NOW_MS - 10 * MINUTE_MS
    clock.adopt(server.sample(MS, MS))
    server.machine.ms += 60 * MINUTE_MS
    assert abs(ahead_ms(clock, server)) <= 2


class SettableClock(ManualClock):
    """One whose wall clock is set apart from its monotonic one."""

    set_by_ms = 0

    def now_ms(self) -> int:
        return self.ms + self.set_by_ms


def test_an_instant_keeps_its_age_when_the_clock_is_set() -> None:
    clock = SettableClock()
    instant = Instant(clock)
    clock.ms += 5 * MINUTE_MS
    assert instant.ms == instant.first_ms == NOW_MS
    for set_by_ms in (-30 * MINUTE_MS, 7 * MINUTE_MS):
        clock.set_by_ms = set_by_ms
        assert clock.now_ms() - instant.ms == 5 * MINUTE_MS
    assert instant.first_ms == NOW_MS
