"""Events of the same person and of the same video, from the rows of the audience."""

import pytest

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from relay.store import Store
from relay.store.audience import related
from relay.store.audience.related import RelatedEvents
from relay.store.sql import Sql
from tests.conftest import NOW_MS
from tests.store.conformance import accept
from tests.store.places import Place
from tests.store.test_audience import BOB, event, fill, lead, watched


def ids(found: RelatedEvents | None) -> list[str]:
    assert found is not None
    return [each.id for each in found.events]


async def test_the_newest_events_of_the_person_and_of_the_video_are_found(
    store: Store,
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


async def test_a_person_is_shown_as_the_stores_digest(store: Store, place: Place) -> None:
    await accept(store, watched("a"), watched("b"))
    await fill(store)
    found = await store.audience.related(1, limit=10)
    assert found is not None
    assert found.person is not None
    ((number,),) = place.rows("SELECT DISTINCT person FROM relay.audience")
    assert found.person.name == f"{number:016x}"
    assert "ann" not in str(found)


async def test_an_event_that_is_not_counted_has_its_relations_by_its_body(
    store: Store,
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    await accept(store, watched("late"), event("ready", "video.ready", {"id": "vid_1"}))
    late, ready = [await store.audience.related(seq, limit=10) for seq in (3, 4)]
    assert late is not None
    assert ready is not None
    assert (ids(late.person), ids(late.video)) == (["a"], ["b", "a"])
    assert (ready.person, ids(ready.video), ready.title) == (None, ["b", "a"], "Tour")


async def test_an_event_without_person_and_video_has_no_relations(store: Store) -> None:
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


async def test_forgotten_events_are_neither_listed_nor_counted(store: Store, place: Place) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(5)), verdicts=[])
    await fill(store)
    place.rows("DELETE FROM relay.deliveries")
    place.rows("DELETE FROM relay.events WHERE seq IN (1, 2)")
    found = await store.audience.related(5, limit=10)
    assert found is not None
    assert found.person is not None
    assert (ids(found.person), found.person.total) == (["e3", "e2"], 2)


async def test_a_large_number_is_counted_up_to_a_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = f"LIMIT {related.TOTAL_MAX + 1}"
    limited = {name: Sql(sql.replace(most, "LIMIT 4")) for name, sql in related._TOTAL.items()}
    monkeypatch.setattr(related, "_TOTAL", limited)
    await accept(store, *(watched(f"e{n}") for n in range(9)))
    await fill(store)
    found = await store.audience.related(1, limit=2)
    assert found is not None
    assert found.video is not None
    assert (len(found.video.events), found.video.total) == (2, 4)
