"""Figures by minute and of attempts equal a count of all rows."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import cast

import pytest
from msgspec.structs import replace

from relay.core.delivery import Attempt, Result, Settlement
from relay.core.minutes import MINUTE_MS, Minute, minute_of
from relay.store.sqlite import statistics
from relay.store.sqlite.store import SqliteStore
from relay.store.statistics import DURATIONS_MS
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, event, lease
from tests.store.places import SqlitePlace
from tests.store.test_audience import opened

HOUR_MS = 3_600_000


@pytest.fixture
async def store(sqlite_place: SqlitePlace, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(sqlite_place, clock) as one:
        yield cast("SqliteStore", one)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of ten rows, without a limit of time."""
    limit = f"LIMIT {statistics.STEP_ROWS}"
    for name in ("_ACCEPTED", "_ATTEMPTED", "_OF_SINK"):
        sql = getattr(statistics, name)
        monkeypatch.setattr(statistics, name, sql.replace(limit, "LIMIT 10"))


async def attempt(
    store: SqliteStore,
    result: Result = "delivered",
    *,
    started_ms: int,
    duration_ms: int = 5,
    status: int | None = 200,
    reason: str = "",
    sink: str = "sales",
) -> None:
    """Attempt the oldest pending delivery of a sink."""
    (delivery,) = (await lease(store, sink, now_ms=NOW_MS + 48 * HOUR_MS, limit=1)).deliveries[:1]
    record = Attempt(
        started_ms=started_ms, duration_ms=duration_ms, result=result, status=status, reason=reason
    )
    await store.settle(Settlement(delivery=delivery, attempt=record, due_ms=NOW_MS))


def counted(times_ms: Iterable[int]) -> Counter[int]:
    return Counter(minute_of(at_ms) for at_ms in times_ms)


async def test_an_empty_store_has_minutes_of_zero(store: SqliteStore) -> None:
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    assert minutes == [
        Minute(at_ms, 0, 0, 0)
        for at_ms in range(minute_of(NOW_MS - HOUR_MS), NOW_MS + 1, MINUTE_MS)
    ]
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert (summary.results, summary.failures, summary.complete) == ([], [], True)


@pytest.mark.parametrize("seed", range(4))
async def test_the_minutes_count_receipts_and_ends_of_attempts(
    store: SqliteStore, small_steps: None, seed: int
) -> None:
    random = Random(seed)
    times_ms = sorted(NOW_MS - random.randrange(2 * HOUR_MS) for _ in range(60))
    await accept(store, *(event(f"e{n}", at_ms=at_ms) for n, at_ms in enumerate(times_ms)))
    ended: dict[str, list[int]] = {"delivered": [], "dead": []}
    for at_ms in times_ms:
        result: Result = random.choice(("delivered", "dead"))
        duration_ms = random.randrange(90_000)
        await attempt(store, result, started_ms=at_ms, duration_ms=duration_ms)
        ended[result].append(at_ms + duration_ms)
    since_ms, until_ms = NOW_MS - HOUR_MS + 7, NOW_MS + 2 * MINUTE_MS
    minutes = await store.statistics.minutes(since_ms, until_ms)
    events, delivered, failed = map(counted, (times_ms, *ended.values()))
    assert minutes == [
        Minute(at_ms, events[at_ms], delivered[at_ms], failed[at_ms])
        for at_ms in range(minute_of(since_ms), until_ms, MINUTE_MS)
    ]


async def test_a_clock_that_was_set_back_hides_no_newer_event(
    store: SqliteStore, small_steps: None
) -> None:
    """After five events of yesterday follow others of this hour, and of tomorrow."""
    times_ms = [
        *(NOW_MS - 50 * MINUTE_MS + n for n in range(8)),
        *(NOW_MS - 24 * HOUR_MS + n for n in range(5)),
        *(NOW_MS + 24 * HOUR_MS + n for n in range(12)),
        *(NOW_MS - 20 * MINUTE_MS + n for n in range(9)),
    ]
    for number, at_ms in enumerate(times_ms):
        await accept(store, event(f"e{number}", at_ms=at_ms))
        await attempt(store, started_ms=at_ms, duration_ms=0)
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    found = {each.at_ms: (each.accepted, each.delivered) for each in minutes if each.accepted}
    assert found == {
        minute_of(NOW_MS - 50 * MINUTE_MS): (8, 8),
        minute_of(NOW_MS - 20 * MINUTE_MS): (9, 9),
    }
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert [(each.result, each.count) for each in summary.results] == [("delivered", 29)]


async def test_minutes_that_were_not_counted_in_time_are_unknown(
    store: SqliteStore, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BUDGET_S", -1.0)
    times_ms = [NOW_MS - (29 - n) * MINUTE_MS for n in range(30)]
    await accept(store, *(event(f"e{n}", at_ms=at_ms) for n, at_ms in enumerate(times_ms)))
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    assert [each.accepted for each in minutes] == [None] * 52 + [1] * 9
    assert {each.delivered for each in minutes} == {0}


async def test_attempts_are_summed_up_by_result_reason_and_duration(store: SqliteStore) -> None:
    await accept(store, *(event(f"e{n}") for n in range(7)), verdicts=[TAKES, OTHER])
    for number, duration_ms in enumerate((9, 10, 999, 1000, 10_000)):
        await attempt(store, started_ms=NOW_MS + number, duration_ms=duration_ms)
    await attempt(store, "dead", started_ms=NOW_MS, status=400, reason="refused")
    await attempt(store, "dead", started_ms=NOW_MS + 50, status=400, reason="refused")
    await attempt(store, "dead", started_ms=NOW_MS, sink="crm", status=400, reason="refused")
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert len(DURATIONS_MS) == 4
    assert [(each.result, each.count, each.durations) for each in summary.results] == [
        ("delivered", 5, [1, 1, 1, 1, 1]),
        ("dead", 2, [2, 0, 0, 0, 0]),
    ]
    (failure,) = summary.failures
    assert (failure.status, failure.reason, failure.count) == (400, "refused", 2)
    assert (failure.first_ms, failure.last_ms) == (NOW_MS + 5, NOW_MS + 55)
    assert (summary.complete, summary.looked_to_ms) == (True, NOW_MS - HOUR_MS)
    assert not (await store.statistics.attempts("sales", NOW_MS + 2 * HOUR_MS)).results


async def test_the_most_frequent_reasons_come_first_and_the_others_are_counted(
    store: SqliteStore, small_steps: None
) -> None:
    reasons = [f"reason {kind}" for kind in range(12) for _ in range(kind + 1)]
    Random(1).shuffle(reasons)
    await accept(store, *(event(f"e{n}") for n in range(len(reasons))))
    for reason in reasons:
        await attempt(store, "dead", started_ms=NOW_MS, reason=reason)
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert [each.reason for each in summary.failures] == [f"reason {n}" for n in range(11, 1, -1)]
    assert [each.count for each in summary.failures] == list(range(12, 2, -1))
    assert summary.other_failures == 3


async def test_a_summary_that_took_too_long_has_the_newest_attempts(
    store: SqliteStore, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BUDGET_S", -1.0)
    await accept(store, *(event(f"e{n}") for n in range(30)))
    for number in range(30):
        await attempt(store, started_ms=NOW_MS + number, duration_ms=0)
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert (summary.complete, summary.looked_to_ms) == (False, NOW_MS + 20)
    assert summary.results[0].count == 10


async def test_a_sink_without_attempts_among_busy_ones_has_none(
    store: SqliteStore, small_steps: None
) -> None:
    await accept(store, *(replace(event(f"e{n}"), received_ms=NOW_MS) for n in range(25)))
    for _ in range(25):
        await attempt(store, started_ms=NOW_MS)
    summary = await store.statistics.attempts("crm", NOW_MS - HOUR_MS)
    assert (summary.results, summary.complete) == ([], True)
