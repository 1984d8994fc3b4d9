"""When a run starts by itself: after an absence, a failed run, or one that left something."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.api_settings import ApiSettings
from relay.core.authentication import SourceSettings
from relay.core.config_values import Secret
from relay.core.errors import NotReconciled
from relay.reconciliation.outages import FOLLOW_UP_MS, RETRY_MS, Outages
from relay.reconciliation.period import GIVE_UP_MS
from relay.reconciliation.reporter import ReconciliationReporter
from relay.store import Store
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
async def outages(store: Store, clock: ManualClock) -> Outages:
    metrics = Metrics(["main", "other"], [])
    reporter = ReconciliationReporter(metrics=metrics, activity=ActivityStream(clock), clock=clock)
    made = Outages(store, reporter=reporter, clock=clock)
    api = ApiSettings(base_url="http://127.0.0.1:9", key=Secret("a-key-of-the-tests"))
    source = SourceSettings(name="main", path="/main", secrets=(), api=api, reconcile="auto")
    await made.refresh({"main": source})
    return made


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


async def test_a_run_that_failed_is_due_again_after_a_while(
    outages: Outages, clock: ManualClock
) -> None:
    outages.failed("main")
    clock.ms += RETRY_MS - 1
    assert await due(outages) is None
    clock.ms += 1
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
