"""Figures by minute and of attempts equal a count of all rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import pytest

from relay.core.delivery import Result
from relay.core.minutes import MINUTE_MS, Minute, minute_of
from relay.store import Store, statistics
from relay.store.statistics import DURATIONS_MS
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import Place

HOUR_MS = 3_600_000


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of ten rows, without a limit of time."""
    monkeypatch.setattr(statistics, "STEP_ROWS", 10)


class Made(NamedTuple):
    """An attempt, in the order of the table's columns."""

    started_ms: int
    duration_ms: int = 5
    result: Result = "delivered"
    status: int | None = 200
    reason: str = ""
    sink: str = "sales"


def insert(place: Place, table: str, columns: str, rows: Sequence[Sequence[object]]) -> None:
    of_row = ", ".join("%s" for _ in rows[0])
    values = ", ".join(f"({of_row})" for _ in rows)
    place.rows(
        f"INSERT INTO relay.{table} ({columns}) VALUES {values}",
        *(value for row in rows for value in row),
    )


def receive(place: Place, times_ms: Sequence[int]) -> None:
    """Store an event for each time, in this order."""
    rows = [("main", f"e{n}", "lead.captured", at_ms, b"") for n, at_ms in enumerate(times_ms)]
    insert(place, "events", "source, id, kind, received_at, digest", rows)


def attempt(place: Place, *attempts: Made) -> None:
    """Store attempts, in this order."""
    columns = "started_at, duration_ms, result, status, reason, sink, event, answer"
    insert(place, "attempts", columns, [(*each, 1, "") for each in attempts])


def counted(times_ms: Iterable[int]) -> Counter[int]:
    return Counter(minute_of(at_ms) for at_ms in times_ms)


async def test_an_empty_store_has_minutes_of_zero(store: Store) -> None:
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    assert minutes == [
        Minute(at_ms, 0, 0, 0)
        for at_ms in range(minute_of(NOW_MS - HOUR_MS), NOW_MS + 1, MINUTE_MS)
    ]
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert (summary.results, summary.failures, summary.complete) == ([], [], True)


@pytest.mark.parametrize("seed", range(4))
async def test_the_minutes_count_receipts_and_ends_of_attempts(
    store: Store, place: Place, small_steps: None, seed: int
) -> None:
    random = Random(seed)
    times_ms = sorted(NOW_MS - random.randrange(2 * HOUR_MS) for _ in range(60))
    receive(place, times_ms)
    ended: dict[str, list[int]] = {"delivered": [], "dead": []}
    results: tuple[Result, ...] = ("delivered", "dead")
    made = [Made(at_ms, random.randrange(90_000), random.choice(results)) for at_ms in times_ms]
    attempt(place, *made)
    for each in made:
        ended[each.result].append(each.started_ms + each.duration_ms)
    since_ms, until_ms = NOW_MS - HOUR_MS + 7, NOW_MS + 2 * MINUTE_MS
    minutes = await store.statistics.minutes(since_ms, until_ms)
    events, delivered, failed = map(counted, (times_ms, *ended.values()))
    assert minutes == [
        Minute(at_ms, events[at_ms], delivered[at_ms], failed[at_ms])
        for at_ms in range(minute_of(since_ms), until_ms, MINUTE_MS)
    ]


async def test_later_looks_count_what_has_come_since(
    store: Store, place: Place, clock: ManualClock, small_steps: None
) -> None:
    for look in range(3):
        times_ms = [NOW_MS + look * MINUTE_MS - n for n in range(25)]
        place.rows("DELETE FROM relay.events")
        rows = [("main", f"{look}-{n}", "lead.captured", at, b"") for n, at in enumerate(times_ms)]
        seqs = [(100 * look + n, *row) for n, row in enumerate(rows, 1)]
        insert(place, "events", "seq, source, id, kind, received_at, digest", seqs)
        attempt(place, *(Made(at_ms, 0) for at_ms in times_ms))
        clock.ms = NOW_MS + look * MINUTE_MS
        await store.statistics.keep_up()
        assert await store.statistics.last_minute() == 25
        minutes = await store.statistics.minutes(NOW_MS - 10 * MINUTE_MS, clock.ms + 1)
        assert sum(each.accepted or 0 for each in minutes) == 25 * (look + 1)
        assert sum(each.delivered or 0 for each in minutes) == 25 * (look + 1)


async def test_reconstructed_events_are_not_counted_as_acknowledged(
    store: Store, place: Place
) -> None:
    receive(place, [NOW_MS, NOW_MS])
    place.rows("UPDATE relay.events SET reconstructed = 1 WHERE id = 'e0'")
    (minute,) = await store.statistics.minutes(NOW_MS, NOW_MS + 1)
    assert minute.accepted == 1
    assert await store.statistics.last_minute() == 1


async def test_a_clock_that_was_set_back_hides_no_newer_event(
    store: Store, place: Place, small_steps: None
) -> None:
    """After five events of yesterday follow others of this hour, and of tomorrow."""
    times_ms = [
        *(NOW_MS - 50 * MINUTE_MS + n for n in range(8)),
        *(NOW_MS - 24 * HOUR_MS + n for n in range(5)),
        *(NOW_MS + 24 * HOUR_MS + n for n in range(12)),
        *(NOW_MS - 20 * MINUTE_MS + n for n in range(9)),
    ]
    receive(place, times_ms)
    attempt(place, *(Made(at_ms, 0) for at_ms in times_ms))
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    found = {each.at_ms: (each.accepted, each.delivered) for each in minutes if each.accepted}
    assert found == {
        minute_of(NOW_MS - 50 * MINUTE_MS): (8, 8),
        minute_of(NOW_MS - 20 * MINUTE_MS): (9, 9),
    }
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert [(each.result, each.count) for each in summary.results] == [("delivered", 29)]


async def test_minutes_that_were_not_counted_in_time_are_unknown(
    store: Store, place: Place, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BUDGET_S", -1.0)
    times_ms = [NOW_MS - (29 - n) * MINUTE_MS for n in range(30)]
    receive(place, times_ms)
    minutes = await store.statistics.minutes(NOW_MS - HOUR_MS, NOW_MS + 1)
    assert [each.accepted for each in minutes] == [None] * 52 + [1] * 9
    assert {each.delivered for each in minutes} == {0}


async def test_attempts_are_summed_up_by_result_reason_and_duration(
    store: Store, place: Place
) -> None:
    durations = (9, 10, 999, 1000, 10_000)
    attempt(place, *(Made(NOW_MS + number, ms) for number, ms in enumerate(durations)))
    refused = Made(NOW_MS, result="dead", status=400, reason="refused")
    later, others = refused._replace(started_ms=NOW_MS + 50), refused._replace(sink="crm")
    attempt(place, refused, later, others)
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
    store: Store, place: Place, small_steps: None
) -> None:
    reasons = [f"reason {kind}" for kind in range(12) for _ in range(kind + 1)]
    Random(1).shuffle(reasons)
    attempt(place, *(Made(NOW_MS, result="dead", reason=reason) for reason in reasons))
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert [each.reason for each in summary.failures] == [f"reason {n}" for n in range(11, 1, -1)]
    assert [each.count for each in summary.failures] == list(range(12, 2, -1))
    assert summary.other_failures == 3


async def test_a_summary_that_took_too_long_has_the_newest_attempts(
    store: Store, place: Place, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BUDGET_S", -1.0)
    attempt(place, *(Made(NOW_MS + number, 0) for number in range(30)))
    summary = await store.statistics.attempts("sales", NOW_MS - HOUR_MS)
    assert (summary.complete, summary.looked_to_ms) == (False, NOW_MS + 20)
    assert summary.results[0].count == 10


async def test_a_sink_without_attempts_among_busy_ones_has_none(
    store: Store, place: Place, small_steps: None
) -> None:
    attempt(place, *(Made(NOW_MS) for _ in range(25)))
    summary = await store.statistics.attempts("crm", NOW_MS - HOUR_MS)
    assert (summary.results, summary.complete) == ([], True)
