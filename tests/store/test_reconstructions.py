"""Reconstructed events are stored once, told from originals, and superseded by them."""

from collections.abc import Sequence

import orjson
import pytest
from msgspec.structs import replace

from relay.core import reconstruction
from relay.core.delivery import Status
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.core.minutes import DAY_MS
from relay.core.routing import Verdict
from relay.store import Store, reconstructions
from relay.store.audience import AudienceQuery, rollup
from relay.store.reconstructions import ReachedStep, ReconstructionOutcome
from relay.store.selection import Selection
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, ids, lease, settlement
from tests.store.erasing import erase
from tests.store.places import Place

ANN = "ann.lee@example.com"
THEN_MS = NOW_MS - 7_200_000
THEN = "2026-01-02T03:04:05.000Z"


def event(event_id: str, kind: str, data: object, *, created_at: str = THEN) -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "createdAt": created_at, "data": data})
    return Event(
        source="main", id=event_id, kind=kind, created_at=created_at, received_ms=NOW_MS, body=body
    )


def watched(
    event_id: str = "original",
    *,
    email: str = ANN,
    milestone: str = "25%",
    video: str = "vid_1",
    created_at: str = THEN,
) -> Event:
    data = {
        "video": {"id": video, "title": "Tour"},
        "viewer": {"email": email, "name": "Ann"},
        "milestone": milestone,
    }
    return event(event_id, VIDEO_WATCHED, data, created_at=created_at)


def reconstructed(original: Event) -> Event:
    id_ = reconstruction.ids(original.kind, original.document())[0]
    body = orjson.dumps(original.document() | {"id": id_, "reconstructed": True})
    return replace(original, id=id_, body=body, reconstructed=True)


async def give(
    store: Store, made: Event, verdicts: Sequence[Verdict] = (TAKES,), person: str = ANN
) -> ReconstructionOutcome:
    return await store.reconstructions.accept(made, verdicts, person=person, stored=lambda _: None)


async def deliveries(store: Store, event_id: str) -> dict[str, Status]:
    (record,) = await store.events.page(Selection(id=event_id), (), limit=5)
    return {each.sink: each.status for each in record.deliveries}


async def people(store: Store) -> dict[str | None, tuple[int, int]]:
    funnel = await store.audience.funnel(AudienceQuery(by="video"))
    return {each.milestone: (each.people, each.events) for each in funnel.total if each.events}


async def test_a_reconstruction_is_leased_and_says_what_it_is(store: Store) -> None:
    made = reconstructed(watched())
    assert await give(store, made) == "accepted"
    (delivery,) = (await lease(store)).deliveries
    assert delivery.event == made
    assert delivery.event.reconstructed


async def test_the_same_reconstruction_is_stored_once(store: Store) -> None:
    assert await give(store, reconstructed(watched())) == "accepted"
    assert await give(store, reconstructed(watched("another original"))) == "known"
    assert len(await store.events.page(Selection(), (), limit=5)) == 1


async def test_a_reconstruction_adds_to_no_total(store: Store) -> None:
    await give(store, reconstructed(watched()))
    assert list(store.totals("main")) == []


async def test_a_list_marks_a_reconstruction(store: Store) -> None:
    await give(store, reconstructed(watched()))
    await accept(store, watched("b", milestone="50%"))
    records = await store.events.page(Selection(), (), limit=5)
    assert [record.reconstructed for record in records] == [False, True]
    assert not any(record.superseded for record in records)


async def test_an_original_supersedes_a_pending_reconstruction(store: Store) -> None:
    made = reconstructed(watched())
    await give(store, made)
    assert await accept(store, watched()) == ["accepted"]
    assert await deliveries(store, made.id) == {"sales": Status.DISCARDED}
    assert await deliveries(store, "original") == {"sales": Status.PENDING}
    (record,) = await store.events.page(Selection(id=made.id), (), limit=5)
    assert record.superseded
    assert [each.events for each in store.totals("main")] == [1]
    assert (await store.backlogs())["sales"].pending == 1


async def test_an_original_goes_only_to_sinks_that_were_not_sent_the_reconstruction(
    store: Store,
) -> None:
    made = reconstructed(watched())
    await give(store, made)
    (delivery,) = (await lease(store)).deliveries
    await store.settle(settlement(delivery))
    await accept(store, watched(), verdicts=(TAKES, OTHER))
    assert await deliveries(store, made.id) == {"sales": Status.DELIVERED}
    assert await deliveries(store, "original") == {
        "crm": Status.PENDING,
        "sales": Status.DISCARDED,
    }


async def test_a_reconstruction_in_flight_stays_and_its_sink_does_not_get_the_original(
    store: Store,
) -> None:
    made = reconstructed(watched())
    await give(store, made)
    (delivery,) = (await lease(store)).deliveries
    await accept(store, watched())
    assert await deliveries(store, "original") == {"sales": Status.DISCARDED}
    await store.settle(settlement(delivery))
    assert await deliveries(store, made.id) == {"sales": Status.DELIVERED}
    assert (await store.backlogs())["sales"].pending == 0


async def test_a_reconstruction_that_its_sink_keeps_is_tried_again(store: Store) -> None:
    made = reconstructed(watched())
    await give(store, made)
    (delivery,) = (await lease(store)).deliveries
    await accept(store, watched())
    await store.settle(settlement(delivery, "retry", due_ms=NOW_MS + 1000))
    assert ids(await lease(store, now_ms=NOW_MS + 1000)) == [made.id]


async def test_a_reconstruction_that_was_leased_but_not_sent_is_sent_later(store: Store) -> None:
    made = reconstructed(watched())
    await give(store, made)
    leased = (await lease(store)).deliveries
    await accept(store, watched())
    store.release(leased)
    assert ids(await lease(store)) == [made.id]


async def test_a_superseded_reconstruction_is_no_longer_leased(store: Store) -> None:
    await give(store, reconstructed(watched()))
    await accept(store, watched())
    assert [each.event.id for each in (await lease(store)).deliveries] == ["original"]


async def test_an_original_that_comes_again_is_a_duplicate(store: Store) -> None:
    await give(store, reconstructed(watched()))
    assert await accept(store, watched()) == ["accepted"]
    assert await accept(store, watched()) == ["duplicate"]


async def test_a_superseded_reconstruction_is_not_made_again(store: Store) -> None:
    made = reconstructed(watched())
    await give(store, made)
    await accept(store, watched())
    assert await give(store, made) == "known"
    assert await accept(store, watched()) == ["duplicate"]
    assert [each.event.id for each in (await lease(store)).deliveries] == ["original"]


async def test_an_original_whose_reconstruction_was_erased_is_delivered_as_any_other(
    store: Store,
) -> None:
    await give(store, reconstructed(watched()))
    await erase(store, ANN, now_ms=NOW_MS)
    assert await accept(store, watched(), verdicts=(TAKES, OTHER)) == ["accepted"]
    assert await deliveries(store, "original") == {
        "crm": Status.PENDING,
        "sales": Status.PENDING,
    }


async def test_a_reconstruction_stays_if_its_original_is_a_conflict(store: Store) -> None:
    made = reconstructed(watched())
    await accept(store, watched(milestone="50%"))
    await give(store, made)
    assert await accept(store, watched()) == ["conflict"]
    assert {each.event.id for each in (await lease(store)).deliveries} == {"original", made.id}


async def test_an_original_supersedes_after_a_restart(place: Place, clock: ManualClock) -> None:
    made = reconstructed(watched())
    async with place.open(clock) as store:
        await give(store, made)
    async with place.open(clock) as store:
        await accept(store, watched())
        assert await deliveries(store, made.id) == {"sales": Status.DISCARDED}


async def test_an_original_during_a_run_keeps_its_reconstruction_from_being_made(
    store: Store,
) -> None:
    made = reconstructed(watched())
    await store.reconstructions.announce("main")
    await accept(store, watched())
    assert await give(store, made) == "arrived"
    store.reconstructions.conclude("main")
    assert await give(store, made) == "accepted"


async def test_a_lead_is_recognized_by_its_id(store: Store) -> None:
    data = {"id": "lead_1", "email": ANN, "video": {"id": "vid_1"}, "createdAt": THEN}
    made = reconstructed(event("a", LEAD_CAPTURED, data))
    await give(store, made)
    await accept(store, event("b", LEAD_CAPTURED, data | {"fields": {"company": "Contoso"}}))
    assert await deliveries(store, made.id) == {"sales": Status.DISCARDED}


async def test_an_erased_person_is_not_reconstructed(store: Store) -> None:
    await erase(store, ANN, now_ms=NOW_MS)
    assert await give(store, reconstructed(watched()), person=ANN.upper()) == "erased"
    assert await store.reconstructions.erased([ANN, "bob@example.com"]) == {ANN}


async def test_an_erasure_removes_the_digest_in_the_id_too(store: Store) -> None:
    made = reconstructed(watched())
    await give(store, made)
    await erase(store, ANN, now_ms=NOW_MS)
    (record,) = await store.events.page(Selection(), (), limit=5)
    assert record.id.startswith("erased-")
    assert record.bytes is None


async def test_the_audience_counts_a_reconstruction_at_its_time_and_once(
    store: Store,
) -> None:
    await give(store, reconstructed(watched()))
    assert await people(store) == {"25%": (1, 1)}
    steps = await store.reconstructions.steps("main", "vid_1", [ANN])
    at_ms = reconstruction.occurred_ms(watched().document())
    assert steps == {ANN: [ReachedStep("25%", at_ms or 0)]}
    await accept(store, watched())
    assert await people(store) == {"25%": (1, 1)}


async def test_a_superseded_reconstruction_leaves_its_day(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    await give(store, reconstructed(watched()))
    while await store.audience.fill():
        pass
    await accept(store, watched())
    while await store.audience.fill():
        pass
    assert await people(store) == {"25%": (1, 1)}
    steps = await store.reconstructions.steps("main", "vid_1", [ANN])
    assert steps == {ANN: [ReachedStep("25%", NOW_MS)]}


async def test_a_superseded_reconstruction_leaves_its_person_on_the_day_of_another_view(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    await accept(store, watched("another"))
    original = watched(video="vid_2", created_at="2026-03-02T09:31:00.000Z")
    await give(store, reconstructed(original))
    while await store.audience.fill():
        pass
    await accept(store, replace(original, received_ms=NOW_MS + DAY_MS))
    while await store.audience.fill():
        pass
    midnight_ms = NOW_MS - NOW_MS % DAY_MS
    day = AudienceQuery(by="day", since_ms=midnight_ms, until_ms=midnight_ms + DAY_MS)
    funnel = await store.audience.funnel(day)
    assert [(each.people, each.events) for each in funnel.total if each.events] == [(1, 1)]


async def test_an_original_before_the_count_is_counted_once(store: Store) -> None:
    await give(store, reconstructed(watched()))
    await accept(store, watched())
    assert await people(store) == {"25%": (1, 1)}


async def test_the_library_knows_the_changes_of_a_video(store: Store) -> None:
    about = {"id": "vid_1", "title": "Tour"}
    await accept(
        store,
        event("a", "video.created", about),
        event("b", "video.ready", about | {"version": 2}),
        event("c", "video.deleted", about | {"trashed": True}),
    )
    (video,) = await store.reconstructions.library("main")
    assert (video.id, video.title, video.seen_ms) == ("vid_1", "Tour", NOW_MS)
    assert video.changes == {"created": NOW_MS, "ready 2": NOW_MS, "trashed": NOW_MS}
    assert await store.reconstructions.library("other") == []


async def test_an_absence_is_unreconciled_until_a_run_covers_it(store: Store) -> None:
    absences, runs = store.absences, store.reconstructions
    await absences.beat(now_ms=NOW_MS - 3_600_000, cause="stopped", over_ms=0)
    absence = await absences.beat(now_ms=NOW_MS, cause="crashed", over_ms=0)
    assert await absences.unreconciled("main") == [absence]
    assert absence is not None
    assert absence.lacks is not None
    span = {"since_ms": absence.from_ms, "until_ms": absence.lacks.to_ms}
    trial = await runs.begin("main", **span, dry_run=True, now_ms=NOW_MS)
    await runs.end(trial, "done", report={"given": {}}, place=None, now_ms=NOW_MS)
    assert await absences.unreconciled("main") == [absence]
    narrow = await runs.begin("main", **span, dry_run=False, now_ms=NOW_MS)
    report = {"unrequested": ["video.watched"]}
    await runs.end(narrow, "done", report=report, place=None, now_ms=NOW_MS)
    assert await absences.unreconciled("main") == [absence]
    run = await runs.begin("main", **span, dry_run=False, now_ms=NOW_MS)
    place = reconstructions.ReadPosition("ses_7", THEN_MS)
    ended = await runs.end(run, "done", report={"given": {}}, place=place, now_ms=NOW_MS)
    assert await absences.unreconciled("main") == []
    assert await absences.unreconciled("other") == [absence]
    assert await runs.place("main") == place
    assert list(await runs.runs(before=None, limit=1)) == [ended]


async def test_a_run_that_a_restart_cut_off_has_failed(place: Place, clock: ManualClock) -> None:
    async with place.open(clock) as store:
        run = await store.reconstructions.begin(
            "main", since_ms=1, until_ms=2, dry_run=False, now_ms=NOW_MS
        )
    async with place.open(clock) as store:
        ended = await store.reconstructions.run(run.id)
    assert ended is not None
    assert (ended.state, ended.ended_ms) == ("failed", None)


async def test_the_step_of_a_lead_names_the_lead(store: Store) -> None:
    data = {"id": "lead_7", "email": ANN, "video": {"id": "vid_1"}}
    await accept(store, event("original", LEAD_CAPTURED, data))
    steps = await store.reconstructions.steps("main", "vid_1", [ANN])
    assert steps == {ANN: [ReachedStep("lead", NOW_MS, "lead_7")]}


async def test_a_lead_of_another_source_is_another_lead(store: Store) -> None:
    data = {"id": "lead_7", "email": ANN, "video": {"id": "vid_1"}}
    original = event("original", LEAD_CAPTURED, data)
    await accept(store, replace(original, source="other"))
    assert await store.reconstructions.steps("main", "vid_1", [ANN]) == {}
    made = reconstructed(original)
    assert await give(store, made) == "accepted"
