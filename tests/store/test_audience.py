"""The audience equals a count of all accepted events, and outlives them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.core.config_values import Duration, Size
from relay.core.event import LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, Event
from relay.store import StoreSettings
from relay.store.audience import AudienceQuery, Funnel
from relay.store.sqlite import audience, queries
from relay.store.sqlite.backup import SqliteBackups
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, lease, settlement

DAY_MS = 86_400_000
ANN, BOB = "ann.lee@example.com", "bob@example.com"
STEPS = (*MILESTONES, "lead")
BY_VIDEO = AudienceQuery(by="video")


@asynccontextmanager
async def opened(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    settings = StoreSettings(
        path=str(path),
        min_free=Size.parse("1B"),
        payload_retention=Duration.parse("1d"),
        dedupe_retention=Duration.parse("2d"),
    )
    store = await open_store(settings, clock=clock)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relay.db"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(path, clock) as one:
        yield one


def event(
    event_id: str, kind: str, data: object, *, source: str = "main", at_ms: int = NOW_MS
) -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": data})
    return Event(
        source=source, id=event_id, kind=kind, created_at=None, received_ms=at_ms, body=body
    )


def watched(
    event_id: str,
    email: str = ANN,
    *,
    video: str = "vid_1",
    title: str = "Tour",
    milestone: str = "started",
    at_ms: int = NOW_MS,
) -> Event:
    data = {
        "video": {"id": video, "title": title},
        "viewer": {"email": email},
        "milestone": milestone,
    }
    return event(event_id, VIDEO_WATCHED, data, at_ms=at_ms)


def lead(event_id: str, email: str = ANN, *, at_ms: int = NOW_MS) -> Event:
    data = {"email": email, "video": {"id": "vid_1", "title": "Tour"}}
    return event(event_id, LEAD_CAPTURED, data, at_ms=at_ms)


def people_of(funnel: Funnel) -> dict[str, int]:
    return {step.milestone or "lead": step.people for step in funnel.total if step.people}


def ask(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db:
        return db.execute(sql).fetchall()


async def fill(store: SqliteStore) -> None:
    while await store.audience.fill():
        pass


async def forget(store: SqliteStore, *, days: float) -> None:
    """Settle all deliveries, then run retention at a later time."""
    for delivery in (await lease(store, limit=10_000)).deliveries:
        await store.settle(settlement(delivery))
    while await store.expire(now_ms=NOW_MS + int(days * DAY_MS)):
        pass


async def test_a_video_has_its_latest_title(store: SqliteStore) -> None:
    await accept(store, watched("a", title="Old"), watched("b", title="New"))
    assert (await store.audience.funnel(BY_VIDEO)).groups[0].title == "New"
    await accept(store, event("c", "video.ready", {"id": "vid_1", "title": "Renamed"}))
    await accept(store, event("d", LEAD_CAPTURED, {"video": {"id": "vid_1"}}))
    assert (await store.audience.funnel(BY_VIDEO)).groups[0].title == "Renamed"


async def test_the_result_says_up_to_when_it_counts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "STEP_BYTES", 1)
    monkeypatch.setattr(audience, "CATCH_UP_STEPS", 2)
    await accept(store, *(watched(f"e{n}", at_ms=NOW_MS + n) for n in range(5)))
    answer = await store.audience.funnel(BY_VIDEO)
    assert (answer.counted_until_ms, answer.total[0].events) == (NOW_MS + 2, 2)
    await fill(store)
    answer = await store.audience.funnel(BY_VIDEO)
    assert (answer.counted_until_ms, answer.total[0].events) == (None, 5)


async def test_counts_outlive_bodies_ids_and_a_restart(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await accept(store, watched("a"), lead("b"))
        await fill(store)
        await forget(store, days=3)
        assert ask(store, "SELECT count(*) FROM events") == [(0,)]
    async with opened(path, clock) as store:
        # Numbers that were given out before are not given out again.
        await accept(store, watched("c", BOB))
        answer = await store.audience.funnel(BY_VIDEO)
        assert people_of(answer) == {"started": 2, "lead": 1}


async def test_retention_waits_for_uncounted_events(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    with monkeypatch.context() as patch:
        patch.setattr(audience, "fill", lambda *_: False)
        await forget(store, days=3)
        assert ask(store, "SELECT count(body) FROM events") == [(2,)]
    await forget(store, days=3)
    assert ask(store, "SELECT count(*) FROM events") == [(0,)]
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_concurrent_steps_count_nothing_twice(store: SqliteStore) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(50)))
    await asyncio.gather(*(store.audience.fill() for _ in range(5)))
    assert (await store.audience.funnel(BY_VIDEO)).total[0].events == 50


async def test_a_failed_step_writes_nothing_and_is_repeated(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, clock) as store:
        await accept(store, watched("a"), watched("b", BOB))
        with monkeypatch.context() as patch:
            patch.setattr(queries, "remember", _fails)
            with pytest.raises(Exception, match="not written"):
                await store.audience.fill()
        assert ask(store, "SELECT count(*) FROM audience") == [(0,)]
    async with opened(path, clock) as store:
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


def _fails(*_: object) -> None:
    raise ValueError


async def test_an_unreadable_body_is_skipped(store: SqliteStore) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE events SET body = x'7b7b' WHERE id = 'a'")
        db.commit()
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


async def test_an_erasure_removes_only_the_persons_counts(store: SqliteStore) -> None:
    await accept(store, watched("a"), lead("b"), watched("c", BOB))
    await fill(store)
    await accept(store, lead("d"))
    before = await store.personal_data.count("ANN.lee@example.com")
    erased = await store.personal_data.erase("ANN.lee@example.com", now_ms=NOW_MS)
    assert (before.views, erased.views, erased.events) == (2, 2, 3)
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
    assert (await store.personal_data.count(ANN)).views == 0


async def test_a_person_who_returns_after_an_erasure_counts_again(store: SqliteStore) -> None:
    await accept(store, watched("a"))
    await fill(store)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    assert await accept(store, watched("a")) == ["duplicate"]
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {}
    await accept(store, watched("b"))
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


async def test_a_title_or_id_that_contains_the_address_is_erased(store: SqliteStore) -> None:
    await accept(store, watched("a", BOB, title=f"For {ANN}"), watched("b", BOB, video=ANN))
    await fill(store)
    erased = await store.personal_data.erase(ANN, now_ms=NOW_MS)
    assert erased.videos == 2
    answer = await store.audience.funnel(BY_VIDEO)
    assert {(each.video or "")[:7] for each in answer.groups} == {"vid_1", "erased-"}
    assert {each.title for each in answer.groups} == {None, "Tour"}
    assert people_of(answer) == {"started": 1}


async def test_a_persons_views_are_exported(store: SqliteStore) -> None:
    await accept(store, watched("a"), lead("b", at_ms=NOW_MS + 1), watched("c", BOB))
    await fill(store)
    await forget(store, days=3)
    parts = [await store.personal_data.records(ANN, after=None)]
    while parts[-1].next is not None:
        parts.append(await store.personal_data.records(ANN, after=parts[-1].next))
    views = [each for part in parts for each in part.views]
    assert [(each.source, each.video, each.title, each.step, each.at_ms) for each in views] == [
        ("main", "vid_1", "Tour", "started", NOW_MS),
        ("main", "vid_1", "Tour", "lead", NOW_MS + 1),
    ]


async def test_a_backup_holds_the_audience(path: Path, clock: ManualClock, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with opened(path, clock) as store:
        await accept(store, watched("a"), lead("b"))
        await fill(store)
        async with SqliteBackups(path, min_free=0).copied() as made:
            copy.write_bytes(made.read_bytes())
        answer = await store.audience.funnel(BY_VIDEO)
    async with opened(copy, clock) as store:
        assert await store.audience.funnel(BY_VIDEO) == answer
        assert (await store.personal_data.erase(ANN, now_ms=NOW_MS)).views == 2
