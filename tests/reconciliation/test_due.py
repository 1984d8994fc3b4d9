"""When a run starts by itself: after an absence, a failed run, or one that left something."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.api_settings import ApiSettings
from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import NotReconciled
from relay.reconciliation.outages import FOLLOW_UP_MS, PAUSES_MS, Outages
from relay.reconciliation.period import GIVE_UP_MS
from relay.reconciliation.reconciler import Reconciler
from relay.reconciliation.reporter import ReconciliationReporter
from relay.store import Store
from relay.store.reconstructions import RunState
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import SqlitePlace

HOUR_MS = 3_600_000
BACK_MS = NOW_MS - HOUR_MS
AWAY_MS = BACK_MS - HOUR_MS


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    """A store of a relay that was away for an hour, and came back an hour ago."""
    async with SqlitePlace(tmp_path).open(clock) as one:
        await one.absences.beat(now_ms=AWAY_MS, cause="stopped", over_ms=0)
        await one.absences.beat(now_ms=BACK_MS, cause="crashed", over_ms=0)
        yield one


@pytest.fixture
def reporter(clock: ManualClock) -> ReconciliationReporter:
    metrics = Metrics(["main", "other"], [])
    return ReconciliationReporter(metrics=metrics, activity=ActivityStream(clock), clock=clock)


@pytest.fixture
def source() -> SourceSettings:
    api = ApiSettings(base_url="http://127.0.0.1:9", key=Secret("a-key-of-the-tests"))
    return SourceSettings(name="main", path="/main", secrets=(), api=api, reconcile="auto")


@pytest.fixture
async def outages(
    store: Store, clock: ManualClock, reporter: ReconciliationReporter, source: SourceSettings
) -> Outages:
    made = Outages(store, reporter=reporter, clock=clock)
    await made.refresh({"main": source})
    return made


@pytest.fixture
def reconciler(
    store: Store, clock: ManualClock, reporter: ReconciliationReporter, source: SourceSettings
) -> Reconciler:
    return Reconciler(store, [source], [], reporter=reporter, clock=clock, wake=lambda _: None)


async def due(outages: Outages) -> int | None:
    return await outages.due_since_ms("main", give_up_ms=GIVE_UP_MS)


async def run(store: Store, source: str = "main", **left: int) -> None:
    """End a run over the absence that leaves something to the next one."""
    span = {"since_ms": AWAY_MS, "until_ms": NOW_MS}
    begun = await store.reconstructions.begin(source, **span, dry_run=False, now_ms=BACK_MS)
    report: dict[str, Any] = {"left": left}
    await store.reconstructions.end(begun, "done", report=report, place=None, now_ms=BACK_MS)


async def test_a_run_is_due_once_the_sender_has_given_up(
    outages: Outages, clock: ManualClock
) -> None:
    clock.ms = BACK_MS + GIVE_UP_MS - 1
    assert await due(outages) is None
    clock.ms += 1
    assert await due(outages) == AWAY_MS


@pytest.mark.parametrize("state", PAUSES_MS)
async def test_a_run_that_failed_or_was_cancelled_is_due_again_after_a_while(
    outages: Outages, clock: ManualClock, state: RunState
) -> None:
    outages.ended("main", state)
    clock.ms += PAUSES_MS[state] - 1
    assert await due(outages) is None
    clock.ms += 1
    assert await due(outages) == AWAY_MS


async def test_a_new_absence_is_reconciled_soon_after_a_cancelled_run(
    store: Store, outages: Outages, clock: ManualClock, source: SourceSettings
) -> None:
    outages.ended("main", "cancelled")
    back_ms = NOW_MS + HOUR_MS
    await store.absences.beat(now_ms=back_ms, cause="crashed", over_ms=0)
    await outages.refresh({"main": source})
    clock.ms = back_ms + GIVE_UP_MS
    assert await due(outages) == AWAY_MS


async def test_a_run_that_left_something_is_followed_by_another_for_a_day(
    store: Store, outages: Outages, clock: ManualClock
) -> None:
    await run(store, view_open=1)
    await run(store, source="other")
    await outages.refresh({})
    assert await due(outages) == AWAY_MS
    clock.ms = BACK_MS + GIVE_UP_MS + FOLLOW_UP_MS
    assert await due(outages) is None


async def test_a_run_that_left_nothing_is_the_last(store: Store, outages: Outages) -> None:
    await run(store)
    await outages.refresh({})
    assert await due(outages) is None
    with pytest.raises(NotReconciled, match="no absence beyond"):
        await outages.oldest_ms("main")


async def test_no_run_begins_for_a_source_that_a_reload_has_removed(
    reconciler: Reconciler,
) -> None:
    reconciler.adopt([], [])
    with pytest.raises(NotReconciled, match=r"source main has no \[source.api\]"):
        await reconciler.begin("main", since_ms=AWAY_MS, until_ms=None, dry_run=False)


async def test_of_two_runs_of_a_source_that_are_asked_for_at_once_one_begins(
    reconciler: Reconciler,
) -> None:
    asked: Any = {"since_ms": AWAY_MS, "until_ms": None, "dry_run": False}
    found = await asyncio.gather(
        *(reconciler.begin("main", **asked) for _ in range(2)), return_exceptions=True
    )
    (refused,) = [each for each in found if isinstance(each, BaseException)]
    assert str(refused) == "another run of source main is beginning"
