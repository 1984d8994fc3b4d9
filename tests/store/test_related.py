"""Events of the same person and of the same video, from the rows of the audience."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import cast

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from relay.store import related
from relay.store.related import RelatedEvents
from relay.store.sqlite import related as queries
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.places import SqlitePlace
from tests.store.test_audience import BOB, event, fill, lead, opened, watched


@pytest.fixture
async def store(sqlite_place: SqlitePlace, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(sqlite_place, clock) as one:
        yield cast("SqliteStore", one)


def ids(found: RelatedEvents | None) -> list[str]:
    assert found is not None
    return [each.id for each in found.events]


async def test_the_newest_events_of_the_person_and_of_the_video_are_found(
    store: SqliteStore,
) -> None:
    await accept(
        store,
        watched("a", " Ann.Lee@EXAMPLE.com", video="v1", milestone="50%", at_ms=NOW_MS + 1),
        watched("b", BOB, video="v1"),
        watched("c", video="v2", title="Other"),
        watched("d", video="v1"),
        lead("e"),
    )
    await fill(store)
    found = await store.audience.related(4, limit=10)
    assert found is not None
    assert found.person is not None
    assert found.video is not None
    assert (ids(found.person), found.person.total) == (["e", "c", "a"], 3)
    assert (ids(found.video), found.video.total) == (["b", "a"], 2)
    assert (found.video.name, found.title) == ("v1", "Tour")
    newest, _, oldest = found.person.events
    assert (newest.kind, newest.milestone, newest.title) == (LEAD_CAPTURED, None, "Tour")
    assert (oldest.seq, oldest.source, oldest.kind) == (1, "main", VIDEO_WATCHED)
    assert (oldest.milestone, oldest.video, oldest.received_ms) == ("50%", "v1", NOW_MS + 1)
    cut = await store.audience.related(4, limit=1)
    assert cut is not None
    assert (ids(cut.person), ids(cut.video)) == (["e"], ["b"])


async def test_a_person_stands_there_as_the_stores_digest(store: SqliteStore) -> None:
    await accept(store, watched("a"), watched("b"))
    await fill(store)
    found = await store.audience.related(1, limit=10)
    assert found is not None
    assert found.person is not None
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db:
        (number,) = db.execute("SELECT DISTINCT person FROM audience").fetchone()
    assert found.person.name == f"{number:016x}"
    assert "ann" not in str(found)


async def test_an_event_that_is_not_counted_has_its_relations_by_its_body(
    store: SqliteStore,
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    await accept(store, watched("late"), event("ready", "video.ready", {"id": "vid_1"}))
    late, ready = [await store.audience.related(seq, limit=10) for seq in (3, 4)]
    assert late is not None
    assert ready is not None
    assert (ids(late.person), ids(late.video)) == (["a"], ["b", "a"])
    assert (ready.person, ids(ready.video), ready.title) == (None, ["b", "a"], "Tour")


async def test_an_event_without_person_and_video_has_no_relations(store: SqliteStore) -> None:
    data: object
    for number, data in enumerate(({"nothing": 1}, [], {"video": {"id": "unknown"}})):
        await accept(store, event(f"e{number}", "other", data))
    await accept(store, event("test", LEAD_CAPTURED, {"email": ""}))
    await fill(store)
    for seq in range(1, 5):
        found = await store.audience.related(seq, limit=10)
        assert found is not None
        assert (found.person, found.video, found.title) == (None, None, None)
    assert await store.audience.related(5, limit=10) is None


async def test_forgotten_events_are_neither_listed_nor_counted(store: SqliteStore) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(5)), verdicts=[])
    await fill(store)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("DELETE FROM events WHERE seq IN (1, 2)")
        db.commit()
    found = await store.audience.related(5, limit=10)
    assert found is not None
    assert found.person is not None
    assert (ids(found.person), found.person.total) == (["e3", "e2"], 2)


async def test_a_large_number_is_counted_up_to_a_limit(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = f"LIMIT {related.TOTAL_MAX + 1}"
    monkeypatch.setattr(queries, "_TOTAL", queries._TOTAL.replace(most, "LIMIT 4"))
    await accept(store, *(watched(f"e{n}") for n in range(9)))
    await fill(store)
    found = await store.audience.related(1, limit=2)
    assert found is not None
    assert found.video is not None
    assert (len(found.video.events), found.video.total) == (2, 4)


async def test_the_related_events_are_found_by_indexes(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path)) as db:
        for sql in (queries._NEWEST, queries._TOTAL):
            values = [1] * (4 if sql is queries._NEWEST else 3)
            plan = db.execute(f"EXPLAIN QUERY PLAN {sql.format(column='video')}", values).fetchall()
            assert "audience_of_video (video=?" in str(plan)
            assert "SCAN a" not in str(plan)
            assert "TEMP B-TREE" not in str(plan)
