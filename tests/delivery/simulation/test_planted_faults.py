"""The simulation finds faults that are planted in the dispatcher and in the stores' leasing."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from relay.app.sink_history import SinkHistory
from relay.core.clock import SynchronizedClock
from relay.core.retry import RefusalStreak
from relay.delivery import circuit_breaker
from relay.delivery.dispatcher import Dispatcher
from relay.delivery.prefetch import Fetcher
from relay.store.postgres import leases
from relay.store.postgres.leases import SinkLeases, Walk
from relay.store.postgres.leasing import Leasing
from relay.store.sqlite import ordering
from relay.store.sqlite.store import SqliteStore
from tests.delivery.simulation.world import FASTEST, World
from tests.seeds import violation

SEEDS = range(200)
POSTGRES, SQLITE = SEEDS[::2], SEEDS[1::2]


class Busy(World):
    """Events come faster than the store answers, whenever a sink changes its owner."""

    trips_s = World.trips_s[-1:]
    loads = (FASTEST,)
    poisonous_shares = (0.0,)


def first_violation(seeds: Iterable[int], world_class: type[World] = World) -> str:
    found = (violation(seed, world_class) for seed in seeds)
    return next(filter(None, found), "")


@pytest.mark.parametrize(("engine", "seeds"), [(Leasing, POSTGRES), (SqliteStore, SQLITE)])
def test_a_first_fetch_that_waits_until_no_event_is_late_is_found(
    monkeypatch: pytest.MonkeyPatch, engine: Any, seeds: range
) -> None:
    """The fault that no simulation had seen: a sink that was taken over never began."""
    lease, bring_forward = engine.lease, engine.bring_forward
    is_begun = set[tuple[int, str]]()

    async def bring_all_forward(self: Any, sink: str, *, now_ms: int, limits: Any) -> Any:
        if (id(self), sink) not in is_begun:
            while await bring_forward(self, sink, beyond_ms=now_ms, to_ms=now_ms, now_ms=now_ms):
                pass
            is_begun.add((id(self), sink))
        return await lease(self, sink, now_ms=now_ms, limits=limits)

    monkeypatch.setattr(engine, "lease", bring_all_forward)
    assert "stands still" in first_violation(seeds, Busy)


def test_a_relay_that_goes_by_its_own_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that was minutes behind, sinks stood still in silence."""
    monkeypatch.setattr(SynchronizedClock, "adopt", lambda self, sample: 0)
    assert "stands still" in first_violation(POSTGRES)


def test_a_wakeup_that_is_lost_during_a_fetch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wake = Fetcher.wake

    def lose(self: Fetcher) -> None:
        if not self.fetching:
            wake(self)

    monkeypatch.setattr(Fetcher, "wake", lose)
    assert "stands still" in first_violation(SEEDS)


def test_a_walk_that_begins_behind_late_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Walk, behind: object, *, took_s: float, now_s: float) -> None:
        self.whole_from_s = 1e6

    monkeypatch.setattr(Walk, "read", read)
    monkeypatch.setattr(leases, "LAG_MS", 0)
    assert "stands still" in first_violation(POSTGRES)


def test_a_release_that_keeps_the_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: SinkLeases, seq: int) -> None:
        self.walks[self.held[seq].tier].include(self.held[seq].position)

    monkeypatch.setattr(SinkLeases, "release", release)
    assert "stands still" in first_violation(POSTGRES)


def test_a_full_fetch_that_no_other_follows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_by = Fetcher.fetch_by

    def forget(self: Fetcher, due_ms: float) -> None:
        if due_ms > self._clock.now_ms():
            fetch_by(self, due_ms)

    monkeypatch.setattr(Fetcher, "fetch_by", forget)
    assert "stands still" in first_violation(SEEDS)


def test_a_pause_that_swallows_the_next_fetch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Fetcher.release

    def forget(self: Fetcher) -> None:
        release(self)
        self._fetch_at_ms = math.inf

    monkeypatch.setattr(Fetcher, "release", forget)
    monkeypatch.setattr(Fetcher, "fetch_now", lambda self: self._notify())
    assert "stands still" in first_violation(SEEDS)


def test_a_key_whose_last_event_goes_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = ordering.TRIGGER.replace("SELECT min(event)", "SELECT max(event)")
    monkeypatch.setattr(ordering, "TRIGGER", trigger)
    assert "its key" in first_violation(SQLITE)


def test_refusals_that_are_never_the_destinations_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RefusalStreak, "judge", lambda self, error, **_: error)
    assert "events in a row died" in first_violation(SEEDS)


@pytest.mark.long
def test_a_dispatcher_that_forgets_that_its_sink_was_parked_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dispatcher, "distrust", lambda self: None)
    assert "events in a row died" in first_violation(SEEDS)


def test_a_parked_sink_that_is_recorded_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkHistory, "_state_changed", lambda self, activity: None)
    assert "events in a row died" in first_violation(SEEDS)


def test_rounds_of_probes_that_do_not_grow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "ROUND_MAX", 1)
    assert "for refused ones" in first_violation(SEEDS)
