"""Retention: what it removes, when, and in which steps."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.config_values import Duration, Size
from relay.core.event import Event
from relay.store.audit import Change
from relay.store.replays import PlannedDelivery
from relay.store.selection import Selection
from relay.store.sqlite import absences, audit, retention
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock
from tests.sinks.far_end import until
from tests.store.conformance import FAILS, TAKES, accept, event, lease, settlement, unreadable

DAY_MS = 86_400_000
BODY_DAYS, ID_DAYS = 30, 90


@asynccontextmanager
async def opened(folder: Path, clock: ManualClock, **kinds: str) -> AsyncIterator[SqliteStore]:
    """`kinds` are times by kind, with `_` for `.` and `all` for `*`."""
    globs = {name.replace("_", ".").replace("all", "*"): days for name, days in kinds.items()}
    settings = SqliteSettings(
        path=str(folder / "relay.db"),
        payload_retention=Duration.parse(f"{BODY_DAYS}d"),
        retention={glob: Duration.parse(days) for glob, days in globs.items()},
        dedupe_retention=Duration.parse(f"{ID_DAYS}d"),
        min_free=Size.parse("1B"),
    )
    store = await open_store(settings, clock=clock)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path, clock) as one:
        yield one


def ask(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


async def settle_all(store: SqliteStore) -> None:
    for delivery in (await lease(store, limit=10_000)).deliveries:
        await store.settle(settlement(delivery))


async def sweep(store: SqliteStore, *, days: float) -> int:
    """Run a round of retention this many days from now; return its number of steps."""
    steps = 1
    while await store.expire(now_ms=NOW_MS + int(days * DAY_MS)):
        steps += 1
        assert steps < 1000
    return steps


async def test_a_settled_events_body_is_removed_after_its_retention(
    store: SqliteStore,
) -> None:
    await accept(store, event("a"))
    await settle_all(store)
    await sweep(store, days=BODY_DAYS)
    assert ask(store, "SELECT body NOT NULL, headers NOT NULL FROM events") == [(1, 1)]
    assert ask(store, "SELECT answer FROM attempts") == [("an answer",)]
    await sweep(store, days=BODY_DAYS + 0.01)
    assert ask(store, "SELECT body, headers FROM events") == [(None, None)]
    assert ask(store, "SELECT answer, result FROM attempts") == [("", "delivered")]


async def test_an_event_without_a_body_is_still_a_duplicate(store: SqliteStore) -> None:
    await accept(store, event("a", seed=1))
    await settle_all(store)
    await sweep(store, days=BODY_DAYS + 1)
    assert await accept(store, event("a", seed=1)) == ["duplicate"]
    assert await accept(store, event("a", seed=2)) == ["conflict"]
    assert (await lease(store, now_ms=NOW_MS + 10**12)).deliveries == ()


async def test_an_id_is_removed_after_its_retention_with_all_of_its_rows(
    store: SqliteStore,
) -> None:
    await accept(store, event("a"))
    await settle_all(store)
    await sweep(store, days=ID_DAYS)
    assert ask(store, "SELECT count(*) FROM events") == [(1,)]
    await sweep(store, days=ID_DAYS + 0.01)
    for table in ("events", "deliveries", "attempts"):
        assert ask(store, f"SELECT count(*) FROM {table}") == [(0,)]
    assert await accept(store, event("a")) == ["accepted"]


async def test_a_pending_event_is_never_touched(store: SqliteStore) -> None:
    other = replace(TAKES, sink="crm")
    await accept(store, event("a"), verdicts=[TAKES, other])
    await settle_all(store)
    await sweep(store, days=1000)
    (delivery,) = (await lease(store, "crm")).deliveries
    assert delivery.event == event("a")
    assert ask(store, "SELECT answer FROM attempts") == [("an answer",)]


async def test_events_without_a_sink_are_removed_too(store: SqliteStore) -> None:
    await accept(store, event("a"), verdicts=[])
    await sweep(store, days=BODY_DAYS + 1)
    assert ask(store, "SELECT body FROM events") == [(None,)]
    await sweep(store, days=ID_DAYS + 1)
    assert ask(store, "SELECT count(*) FROM events") == [(0,)]


async def test_retention_updates_the_number_of_dead_letters(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"), verdicts=[FAILS])
    await accept(store, event("c"))
    await sweep(store, days=BODY_DAYS + 1)
    assert (await store.backlogs())["sales"].dead == 2
    await sweep(store, days=ID_DAYS + 1)
    backlog = (await store.backlogs())["sales"]
    assert (backlog.pending, backlog.dead) == (1, 0)


async def test_unreadable_requests_are_removed_in_the_same_two_steps(store: SqliteStore) -> None:
    await store.keep(unreadable(), lambda _: None)
    await sweep(store, days=BODY_DAYS + 1)
    assert ask(store, "SELECT body, headers, reason FROM unreadable") == [
        (None, None, "the body is not JSON")
    ]
    await sweep(store, days=ID_DAYS + 1)
    assert ask(store, "SELECT count(*) FROM unreadable") == [(0,)]


async def test_a_step_removes_few_rows(store: SqliteStore) -> None:
    await accept(store, *(event(f"e{number}") for number in range(350)), verdicts=[])
    removed = []
    before = 350
    while await store.expire(now_ms=NOW_MS + (BODY_DAYS + 1) * DAY_MS):
        left = ask(store, "SELECT count(body) FROM events")[0][0]
        removed.append(before - left)
        before = left
    assert before == 0
    assert max(removed) == retention.STEP_ROWS


async def test_a_step_removes_few_bytes(store: SqliteStore) -> None:
    large = [replace(event(f"e{number}"), body=bytes(400_000)) for number in range(8)]
    await accept(store, *large, verdicts=[])
    while await store.audience.fill():
        pass
    await store.expire(now_ms=NOW_MS + (BODY_DAYS + 1) * DAY_MS)
    assert ask(store, "SELECT count(body) FROM events") == [(5,)]


async def test_a_step_scans_few_rows(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SCAN_ROWS", 10)
    await accept(store, *(event(f"e{number}", at_ms=NOW_MS) for number in range(95)), verdicts=[])
    assert await sweep(store, days=1) >= 20
    await sweep(store, days=BODY_DAYS + 1)
    assert ask(store, "SELECT count(body) FROM events") == [(0,)]


async def test_a_second_round_removes_rows_that_have_expired_since(store: SqliteStore) -> None:
    await accept(store, event("a"))
    await accept(store, event("b", at_ms=NOW_MS + 5 * DAY_MS), verdicts=[])
    await sweep(store, days=BODY_DAYS + 6)
    assert ask(store, "SELECT id FROM events WHERE body IS NOT NULL") == [("a",)]
    await settle_all(store)
    await sweep(store, days=BODY_DAYS + 6)
    assert ask(store, "SELECT count(body) FROM events") == [(0,)]


async def test_an_absence_is_removed_after_its_retention_unless_its_loss_is_unacknowledged(
    store: SqliteStore,
) -> None:
    for minutes in (0, 1, 61, 121):
        await store.absences.beat(now_ms=NOW_MS + minutes * 60_000, cause="stopped", over_ms=0)
    await store.absences.acknowledge(2, now_ms=NOW_MS)
    await sweep(store, days=ID_DAYS)
    assert ask(store, "SELECT id FROM absences") == [(1,), (2,), (3,)]
    await sweep(store, days=ID_DAYS + 0.1)
    assert ask(store, "SELECT id FROM absences") == [(3,)]


async def test_the_number_of_absences_without_a_loss_is_bounded(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absences, "LOSSLESS_MAX", 2)
    for minutes in (0, 60, 61, 62, 63, 64):
        await store.absences.beat(now_ms=NOW_MS + minutes * 60_000, cause="stopped", over_ms=0)
    assert ask(store, "SELECT id FROM absences") == [(1,), (4,), (5,)]


async def test_a_change_is_kept_for_400_days(store: SqliteStore) -> None:
    await store.audit.begin(Change(operation="pause_sink"), now_ms=NOW_MS)
    await sweep(store, days=400)
    assert ask(store, "SELECT operation FROM audit") == [("pause_sink",)]
    await sweep(store, days=400.01)
    assert ask(store, "SELECT operation FROM audit") == []


async def test_the_number_of_changes_is_bounded(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ROWS_MAX", 2)
    for number in range(4):
        await store.audit.begin(Change(operation=f"o{number}"), now_ms=NOW_MS)
    assert ask(store, "SELECT operation FROM audit") == [("o2",), ("o3",)]


async def test_the_file_shrinks(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path, clock) as store:
        large = [replace(event(f"e{number}"), body=bytes(100_000)) for number in range(100)]
        await accept(store, *large, verdicts=[])
    path = tmp_path / "relay.db"
    full = path.stat().st_size
    assert full > 10_000_000
    async with opened(tmp_path, clock) as store:
        await sweep(store, days=BODY_DAYS + 1)
    assert path.stat().st_size < full / 5


async def test_removed_data_is_not_in_the_file(tmp_path: Path, clock: ManualClock) -> None:
    secret = b"person@example.com said a thing"
    async with opened(tmp_path, clock) as store:
        await accept(store, replace(event("a"), body=secret * 200), verdicts=[])
        await sweep(store, days=BODY_DAYS + 1)
    assert all(secret not in file.read_bytes() for file in tmp_path.iterdir())


async def test_acknowledgements_and_retention_go_together(store: SqliteStore) -> None:
    await accept(store, *(event(f"e{number}") for number in range(250)), verdicts=[])
    while await store.expire(now_ms=NOW_MS + (ID_DAYS + 1) * DAY_MS):
        now_ms = NOW_MS + (ID_DAYS + 1) * DAY_MS
        await accept(store, event(f"n{now_ms}", at_ms=now_ms))
    assert ask(store, "SELECT count(*) FROM events") == [(1,)]


def of_kind(kind: str) -> Event:
    return replace(event(kind), kind=kind)


async def bodies(store: SqliteStore, *, days: float) -> set[str]:
    """Return the kinds that still have their body this many days from now."""
    await sweep(store, days=days)
    return {kind for (kind,) in ask(store, "SELECT kind FROM events WHERE body IS NOT NULL")}


async def test_a_kind_has_its_own_time(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path, clock, lead_captured="14d", video_ready="60d") as store:
        kinds = ("lead.captured", "video.ready", "video.watched")
        await accept(store, *map(of_kind, kinds), verdicts=[])
        await store.keep(unreadable(), lambda _: None)
        assert await bodies(store, days=13.9) == set(kinds)
        assert await bodies(store, days=14.1) == {"video.ready", "video.watched"}
        assert ask(store, "SELECT body IS NULL FROM unreadable") == [(0,)]
        assert await bodies(store, days=30.1) == {"video.ready"}
        assert await bodies(store, days=60.1) == set()
        assert ask(store, "SELECT count(*) FROM events") == [(3,)]


async def test_the_shortest_matching_retention_applies(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path, clock, all="20d", video_watched="40d", video_all="5d") as store:
        await accept(store, *map(of_kind, ("lead.captured", "video.watched")), verdicts=[])
        assert await bodies(store, days=5.1) == {"lead.captured"}
        assert await bodies(store, days=20.1) == set()


async def test_a_glob_excludes_as_it_does_elsewhere_in_the_config(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(
        path=str(tmp_path / "relay.db"),
        retention={"[!v]*": Duration.parse("2d")},
        min_free=Size.parse("1B"),
    )
    store = await open_store(settings, clock=clock)
    try:
        await accept(store, *map(of_kind, ("lead.captured", "video.ready")), verdicts=[])
        assert await bodies(store, days=3) == {"video.ready"}
    finally:
        await store.close()


@pytest.mark.parametrize("days", [BODY_DAYS + 1, ID_DAYS + 1])
async def test_an_event_that_a_replay_has_just_opened_stays(store: SqliteStore, days: int) -> None:
    await accept(store, event("a"))
    await settle_all(store)
    await store.audience.fill()
    until = await store.operations.newest()
    begun = await store.operations.begin(Selection(), total=1, until=until, now_ms=NOW_MS)
    now_ms = NOW_MS + days * DAY_MS
    step = await store._shared.leaser.run(lambda db: store._sweep.find(db, now_ms=now_ms))
    assert step.rows
    await store.operations.open(begun, [PlannedDelivery(1, "sales")], cursor=1, now_ms=now_ms)
    await store._writer.transact(step.remove)
    await sweep(store, days=days)
    (delivery,) = (await lease(store, now_ms=now_ms)).deliveries
    assert delivery.event == event("a")
    assert ask(store, "SELECT answer FROM attempts") == [("an answer",)]


async def test_a_round_that_removed_something_empties_the_log(
    tmp_path: Path, clock: ManualClock
) -> None:
    log = tmp_path / "relay.db-wal"
    async with opened(tmp_path, clock) as store:
        await accept(store, event("a"), verdicts=[])
        await sweep(store, days=1)
        assert log.stat().st_size > 0
        await sweep(store, days=BODY_DAYS + 1)
        await until(lambda: b"lead.captured" not in log.read_bytes(), what="the log's end")
