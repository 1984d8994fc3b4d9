"""The audience equals a count of all accepted events, and outlives them."""

import asyncio
from contextlib import AbstractAsyncContextManager

import orjson
import pytest

from relay.core.config_values import Duration
from relay.core.event import LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, Event
from relay.store import Store
from relay.store.audience import AudienceQuery, Funnel, counting
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, lease, settlement
from tests.store.erasing import erase
from tests.store.places import Place

DAY_MS = 86_400_000
ANN, BOB = "ann.lee@example.com", "bob@example.com"
STEPS = (*MILESTONES, "lead")
BY_VIDEO = AudienceQuery(by="video")


def opened(place: Place, clock: ManualClock) -> AbstractAsyncContextManager[Store]:
    return place.open(
        clock, payload_retention=Duration.parse("1d"), dedupe_retention=Duration.parse("2d")
    )


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


async def fill(store: Store) -> None:
    while await store.audience.fill():
        pass


async def forget(store: Store, *, days: float) -> None:
    """Settle all deliveries, then run retention at a later time."""
    for delivery in (await lease(store, limit=10_000)).deliveries:
        await store.settle(settlement(delivery))
    while await store.expire(now_ms=NOW_MS + int(days * DAY_MS)):
        pass


async def test_a_video_has_its_latest_title(store: Store) -> None:
    await accept(store, watched("a", title="Old"), watched("b", title="New"))
    assert (await store.audience.funnel(BY_VIDEO)).groups[0].title == "New"
    await accept(store, event("c", "video.ready", {"id": "vid_1", "title": "Renamed"}))
    await accept(store, event("d", LEAD_CAPTURED, {"video": {"id": "vid_1"}}))
    assert (await store.audience.funnel(BY_VIDEO)).groups[0].title == "Renamed"


async def test_the_result_says_up_to_when_it_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "STEP_BYTES", 1)
    monkeypatch.setattr(counting, "CATCH_UP_STEPS", 2)
    await accept(store, *(watched(f"e{n}", at_ms=NOW_MS + n) for n in range(5)))
    answer = await store.audience.funnel(BY_VIDEO)
    assert (answer.counted_until_ms, answer.total[0].events) == (NOW_MS + 2, 2)
    await fill(store)
    answer = await store.audience.funnel(BY_VIDEO)
    assert (answer.counted_until_ms, answer.total[0].events) == (None, 5)


async def test_counts_outlive_bodies_ids_and_a_restart(place: Place, clock: ManualClock) -> None:
    async with opened(place, clock) as store:
        await accept(store, watched("a"), lead("b"))
        await fill(store)
        await forget(store, days=3)
        assert place.rows("SELECT count(*) FROM relay.events") == [(0,)]
    async with opened(place, clock) as store:
        # Numbers that were given out before are not given out again.
        await accept(store, watched("c", BOB))
        answer = await store.audience.funnel(BY_VIDEO)
        assert people_of(answer) == {"started": 2, "lead": 1}


async def test_retention_waits_for_uncounted_events(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place, clock) as store:
        await accept(store, watched("a"), watched("b", BOB))
        with monkeypatch.context() as patch:
            patch.setattr(store.audience, "count", _counts_nothing)
            await forget(store, days=3)
            assert place.rows("SELECT count(body) FROM relay.events") == [(2,)]
        await forget(store, days=3)
        assert place.rows("SELECT count(*) FROM relay.events") == [(0,)]
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def _counts_nothing(**_: object) -> bool:
    return False


async def test_concurrent_steps_count_nothing_twice(store: Store) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(50)))
    await asyncio.gather(*(store.audience.fill() for _ in range(5)))
    assert (await store.audience.funnel(BY_VIDEO)).total[0].events == 50


async def test_a_failed_step_writes_nothing_and_is_repeated(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*values: object) -> None:
        count(*values)  # type: ignore[arg-type]
        raise ValueError

    count = counting.count
    async with opened(place, clock) as store:
        await accept(store, watched("a"), watched("b", BOB))
        with monkeypatch.context() as patch:
            patch.setattr(counting, "count", fails)
            with pytest.raises(Exception, match="not written"):
                await store.audience.fill()
        assert place.rows("SELECT count(*) FROM relay.audience") == [(0,)]
    async with opened(place, clock) as store:
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_an_unreadable_body_is_skipped(store: Store, place: Place) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    place.rows("UPDATE relay.events SET body = %s WHERE id = 'a'", b"{{")
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


async def test_an_erasure_removes_only_the_persons_counts(store: Store) -> None:
    await accept(store, watched("a"), lead("b"), watched("c", BOB))
    await fill(store)
    await accept(store, lead("d"))
    before = await store.personal_data.count("ANN.lee@example.com")
    erased = await erase(store, "ANN.lee@example.com", now_ms=NOW_MS)
    assert (before.views, erased.views, erased.events) == (2, 2, 3)
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
    assert (await store.personal_data.count(ANN)).views == 0


async def test_a_person_who_returns_after_an_erasure_counts_again(store: Store) -> None:
    await accept(store, watched("a"))
    await fill(store)
    await erase(store, ANN, now_ms=NOW_MS)
    assert await accept(store, watched("a")) == ["duplicate"]
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {}
    await accept(store, watched("b"))
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


async def test_a_title_or_id_that_contains_the_address_is_erased(store: Store) -> None:
    await accept(store, watched("a", BOB, title=f"For {ANN}"), watched("b", BOB, video=ANN))
    await fill(store)
    erased = await erase(store, ANN, now_ms=NOW_MS)
    assert erased.videos == 2
    answer = await store.audience.funnel(BY_VIDEO)
    assert {(each.video or "")[:7] for each in answer.groups} == {"vid_1", "erased-"}
    assert {each.title for each in answer.groups} == {None, "Tour"}
    assert people_of(answer) == {"started": 1}


async def test_a_persons_views_are_exported(store: Store) -> None:
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
