"""Retention: what it removes, when, and in which steps."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.core.event import Event
from relay.store import Store, retention
from relay.store.audit import Change
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import FAILS, TAKES, accept, event, lease, settlement, unreadable
from tests.store.places import Place

DAY_MS = 86_400_000
BODY_DAYS, ID_DAYS = 30, 90


def opened(place: Place, clock: ManualClock, **kinds: str) -> AbstractAsyncContextManager[Store]:
    """`kinds` are times by kind, with `_` for `.` and `all` for `*`."""
    globs = {name.replace("_", ".").replace("all", "*"): days for name, days in kinds.items()}
    return place.open(
        clock,
        payload_retention=Duration.parse(f"{BODY_DAYS}d"),
        retention={glob: Duration.parse(days) for glob, days in globs.items()},
        dedupe_retention=Duration.parse(f"{ID_DAYS}d"),
    )


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with opened(place, clock) as one:
        yield one


async def settle_all(store: Store) -> None:
    for delivery in (await lease(store, limit=10_000)).deliveries:
        await store.settle(settlement(delivery))


async def sweep(store: Store, *, days: float) -> int:
    """Run a round of retention this many days from now; return its number of steps."""
    steps = 1
    while await store.expire(now_ms=NOW_MS + int(days * DAY_MS)):
        steps += 1
        assert steps < 1000
    return steps


async def test_a_settled_events_body_is_removed_after_its_retention(
    store: Store,
    place: Place,
) -> None:
    await accept(store, event("a"))
    await settle_all(store)
    await sweep(store, days=BODY_DAYS)
    assert place.rows("SELECT body IS NOT NULL, headers IS NOT NULL FROM relay.events") == [(1, 1)]
    assert place.rows("SELECT answer FROM relay.attempts") == [("an answer",)]
    await sweep(store, days=BODY_DAYS + 0.01)
    assert place.rows("SELECT body, headers FROM relay.events") == [(None, None)]
    assert place.rows("SELECT answer, result FROM relay.attempts") == [("", "delivered")]


async def test_an_event_without_a_body_is_still_a_duplicate(store: Store) -> None:
    await accept(store, event("a", seed=1))
    await settle_all(store)
    await sweep(store, days=BODY_DAYS + 1)
    assert await accept(store, event("a", seed=1)) == ["duplicate"]
    assert await accept(store, event("a", seed=2)) == ["conflict"]
    assert (await lease(store, now_ms=NOW_MS + 10**12)).deliveries == ()


async def test_an_id_is_removed_after_its_retention_with_all_of_its_rows(
    store: Store,
    place: Place,
) -> None:
    await accept(store, event("a"))
    await settle_all(store)
    await sweep(store, days=ID_DAYS)
    assert place.rows("SELECT count(*) FROM relay.events") == [(1,)]
    await sweep(store, days=ID_DAYS + 0.01)
    for table in ("events", "deliveries", "attempts"):
        assert place.rows(f"SELECT count(*) FROM relay.{table}") == [(0,)]
    assert await accept(store, event("a")) == ["accepted"]


async def test_a_pending_event_is_never_touched(store: Store, place: Place) -> None:
    other = replace(TAKES, sink="crm")
    await accept(store, event("a"), verdicts=[TAKES, other])
    await settle_all(store)
    await sweep(store, days=1000)
    (delivery,) = (await lease(store, "crm")).deliveries
    assert delivery.event == event("a")
    assert place.rows("SELECT answer FROM relay.attempts") == [("an answer",)]


async def test_events_without_a_sink_are_removed_too(store: Store, place: Place) -> None:
    await accept(store, event("a"), verdicts=[])
    await sweep(store, days=BODY_DAYS + 1)
    assert place.rows("SELECT body FROM relay.events") == [(None,)]
    await sweep(store, days=ID_DAYS + 1)
    assert place.rows("SELECT count(*) FROM relay.events") == [(0,)]


async def test_retention_updates_the_number_of_dead_letters(store: Store) -> None:
    await accept(store, event("a"), event("b"), verdicts=[FAILS])
    await accept(store, event("c"))
    await sweep(store, days=BODY_DAYS + 1)
    assert (await store.backlogs())["sales"].dead == 2
    await sweep(store, days=ID_DAYS + 1)
    backlog = (await store.backlogs())["sales"]
    assert (backlog.pending, backlog.dead) == (1, 0)


async def test_unreadable_requests_are_removed_in_the_same_two_steps(
    store: Store, place: Place
) -> None:
    await store.keep(unreadable(), lambda _: None)
    await sweep(store, days=BODY_DAYS + 1)
    assert place.rows("SELECT body, headers, reason FROM relay.unreadable") == [
        (None, None, "the body is not JSON")
    ]
    await sweep(store, days=ID_DAYS + 1)
    assert place.rows("SELECT count(*) FROM relay.unreadable") == [(0,)]


async def test_a_step_removes_few_rows(store: Store, place: Place) -> None:
    await accept(store, *(event(f"e{number}") for number in range(350)), verdicts=[])
    removed = []
    before = 350
    while await store.expire(now_ms=NOW_MS + (BODY_DAYS + 1) * DAY_MS):
        left = place.rows("SELECT count(body) FROM relay.events")[0][0]
        removed.append(before - left)
        before = left
    assert before == 0
    assert max(removed) == retention.STEP_ROWS


async def test_a_step_removes_few_bytes(store: Store, place: Place) -> None:
    large = [replace(event(f"e{number}"), body=bytes(400_000)) for number in range(8)]
    await accept(store, *large, verdicts=[])
    while await store.audience.fill():
        pass
    await store.expire(now_ms=NOW_MS + (BODY_DAYS + 1) * DAY_MS)
    assert place.rows("SELECT count(body) FROM relay.events") == [(5,)]


async def test_a_step_scans_few_rows(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SCAN_ROWS", 10)
    await accept(store, *(event(f"e{number}", at_ms=NOW_MS) for number in range(95)), verdicts=[])
    assert await sweep(store, days=1) >= 20
    await sweep(store, days=BODY_DAYS + 1)
    assert place.rows("SELECT count(body) FROM relay.events") == [(0,)]


async def test_a_second_round_removes_rows_that_have_expired_since(
    store: Store, place: Place
) -> None:
    await accept(store, event("a"))
    await accept(store, event("b", at_ms=NOW_MS + 5 * DAY_MS), verdicts=[])
    await sweep(store, days=BODY_DAYS + 6)
    assert place.rows("SELECT id FROM relay.events WHERE body IS NOT NULL") == [("a",)]
    await settle_all(store)
    await sweep(store, days=BODY_DAYS + 6)
    assert place.rows("SELECT count(body) FROM relay.events") == [(0,)]


async def test_an_absence_is_removed_after_its_retention_unless_its_loss_is_unacknowledged(
    store: Store,
    place: Place,
) -> None:
    for minutes in (0, 1, 61, 121):
        await store.absences.beat(now_ms=NOW_MS + minutes * 60_000, cause="stopped", over_ms=0)
    await store.absences.acknowledge(2, now_ms=NOW_MS)
    await sweep(store, days=ID_DAYS)
    assert place.rows("SELECT id FROM relay.absences ORDER BY id") == [(1,), (2,), (3,)]
    await sweep(store, days=ID_DAYS + 0.1)
    assert place.rows("SELECT id FROM relay.absences ORDER BY id") == [(3,)]


async def test_the_number_of_absences_without_a_loss_is_bounded(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ("sqlite", "postgres"):
        monkeypatch.setattr(f"relay.store.{engine}.absences.LOSSLESS_MAX", 2)
    for minutes in (0, 60, 61, 62, 63, 64):
        await store.absences.beat(now_ms=NOW_MS + minutes * 60_000, cause="stopped", over_ms=0)
    assert place.rows("SELECT id FROM relay.absences ORDER BY id") == [(1,), (4,), (5,)]


async def test_a_change_is_kept_for_400_days(store: Store, place: Place) -> None:
    await store.audit.begin(Change(operation="pause_sink"), now_ms=NOW_MS)
    await sweep(store, days=400)
    assert place.rows("SELECT operation FROM relay.audit") == [("pause_sink",)]
    await sweep(store, days=400.01)
    assert place.rows("SELECT operation FROM relay.audit") == []


async def test_the_number_of_changes_is_bounded(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.audit.ROWS_MAX", 2)
    for number in range(4):
        await store.audit.begin(Change(operation=f"o{number}"), now_ms=NOW_MS)
    assert place.rows("SELECT operation FROM relay.audit") == [("o2",), ("o3",)]


async def test_acknowledgements_and_retention_go_together(store: Store, place: Place) -> None:
    await accept(store, *(event(f"e{number}") for number in range(250)), verdicts=[])
    while await store.expire(now_ms=NOW_MS + (ID_DAYS + 1) * DAY_MS):
        now_ms = NOW_MS + (ID_DAYS + 1) * DAY_MS
        await accept(store, event(f"n{now_ms}", at_ms=now_ms))
    assert place.rows("SELECT count(*) FROM relay.events") == [(1,)]


def of_kind(kind: str) -> Event:
    return replace(event(kind), kind=kind)


async def bodies(store: Store, place: Place, *, days: float) -> set[str]:
    """Return the kinds that still have their body this many days from now."""
    await sweep(store, days=days)
    return {kind for (kind,) in place.rows("SELECT kind FROM relay.events WHERE body IS NOT NULL")}


async def test_a_kind_has_its_own_time(place: Place, clock: ManualClock) -> None:
    async with opened(place, clock, lead_captured="14d", video_ready="60d") as store:
        kinds = ("lead.captured", "video.ready", "video.watched")
        await accept(store, *map(of_kind, kinds), verdicts=[])
        await store.keep(unreadable(), lambda _: None)
        assert await bodies(store, place, days=13.9) == set(kinds)
        assert await bodies(store, place, days=14.1) == {"video.ready", "video.watched"}
        assert place.rows("SELECT body IS NULL FROM relay.unreadable") == [(0,)]
        assert await bodies(store, place, days=30.1) == {"video.ready"}
        assert await bodies(store, place, days=60.1) == set()
        assert place.rows("SELECT count(*) FROM relay.events") == [(3,)]


async def test_the_shortest_matching_retention_applies(place: Place, clock: ManualClock) -> None:
    async with opened(place, clock, all="20d", video_watched="40d", video_all="5d") as store:
        await accept(store, *map(of_kind, ("lead.captured", "video.watched")), verdicts=[])
        assert await bodies(store, place, days=5.1) == {"lead.captured"}
        assert await bodies(store, place, days=20.1) == set()


async def test_a_glob_excludes_as_it_does_elsewhere_in_the_config(
    place: Place, clock: ManualClock
) -> None:
    async with place.open(clock, retention={"[!v]*": Duration.parse("2d")}) as store:
        await accept(store, *map(of_kind, ("lead.captured", "video.ready")), verdicts=[])
        assert await bodies(store, place, days=3) == {"video.ready"}


async def test_a_report_loses_its_names_with_the_bodies_and_keeps_its_numbers(
    store: Store,
) -> None:
    runs = store.reconstructions
    run = await runs.begin("main", since_ms=1, until_ms=2, dry_run=False, now_ms=NOW_MS)
    named = [{"outcome": "left", "kind": "lead.captured", "person": "ann@example.com"}]
    report = {"left": {"form_recent": 1}, "named": named}
    await runs.end(run, "done", report=report, place=None, now_ms=NOW_MS)
    await sweep(store, days=BODY_DAYS)
    kept = await runs.run(run.id)
    assert kept is not None
    assert kept.named[0].person == "ann@example.com"
    await sweep(store, days=BODY_DAYS + 1)
    kept = await runs.run(run.id)
    assert kept is not None
    assert kept.report == {"left": {"form_recent": 1}}
    assert kept.named == ()
