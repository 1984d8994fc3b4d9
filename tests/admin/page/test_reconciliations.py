"""Reconciliations on the page: sources with an API, runs with reports, and marks of events."""

import asyncio
import csv
from pathlib import Path

from msgspec.structs import replace

from relay.core import reconstruction
from relay.core.event import LEAD_CAPTURED
from relay.core.routing import Verdict
from relay.core.sample_events import event
from tests import service
from tests.admin.page.document import Element
from tests.admin.page.test_absences import be_away
from tests.admin.page.visiting import ADA, ADMIN, VIEWER_TOKEN, Visitor, visiting
from tests.service import Relay
from tests.stub_server import DEADLINE_S, until

API = '[source.api]\nbase_url = "http://127.0.0.1:9"\nkey = "a-key-of-the-tests"\n'
"""Of an API that does not answer, for the source before it."""

BEGIN = "/reconciliations/begin"


async def has_ended(relay: Relay) -> None:
    """Wait for the newest run's end."""
    store = relay.service._store
    async with asyncio.timeout(DEADLINE_S):
        while True:
            (run, *_) = await store.reconstructions.runs(before=None, limit=1)
            if run.state != "running":
                return
            await asyncio.sleep(0.02)


async def until_marked(visitor: Visitor, row: str, mark: str, *, path: str = "/events") -> Element:
    """Look at a page until a row has a mark: a slow read is cut short, or shown again later."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = await visitor.see(path)
            if page.has_id(row) and mark in page.by_id(row).text:
                return page
            await asyncio.sleep(0.02)


async def notice_absences(relay: Relay) -> None:
    """Make the relay look now, and wait until it has found something."""
    reconciler, config = relay.service.reconciler, relay.service._reloader.config
    reconciler.adopt(config.sources, config.routes)
    await until(lambda: bool(reconciler.unreconciled.get("main")), what="a noticed absence")


async def test_a_source_with_an_open_absence_can_be_reconciled(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=API + ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        await be_away(relay, hours=5)
        await notice_absences(relay)
        await visitor.see("/")
        assert "relay reconcile --source main" in visitor.html
        page = await visitor.see("/reconciliations")
        form = page.form(BEGIN)
        fields = form.fields() | {"trial": "1", "kind": "lead.captured"}
        answer = await visitor.post(BEGIN, fields)
        page = await visitor.see(answer.headers["location"])
        assert page.by_id("notice").text.startswith("Reconciliation 1 of main has begun, as a tri")
        await has_ended(relay)
        row = (await visitor.see("/reconciliations")).by_id("run-1").text
        assert "failed" in row
        assert "cannot connect" in row
        assert "a-key-of-the-tests" not in visitor.html
        assert (await visitor.see("/changes")).rows() == []
        page = await visitor.see("/reconciliations/1")
        assert "cannot connect" in page.by_id("report").text


async def test_without_an_api_nothing_can_be_asked(visitor: Visitor) -> None:
    page = await visitor.see("/reconciliations")
    assert page.has_id("no-api")
    assert page.has_id("none")
    await visitor.see("/reconciliations?x=1", status=400)


async def test_viewers_see_reconciliations_and_begin_none(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=API + ADMIN)
    async with (
        service.serving(config) as relay,
        visiting(relay, token=VIEWER_TOKEN) as viewer,
    ):
        await be_away(relay, hours=5)
        await notice_absences(relay)
        await viewer.see("/reconciliations")
        assert BEGIN not in viewer.html


async def test_a_run_of_one_kind_is_ordered_by_the_same_operation(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=API + ADMIN)
    async with service.serving(config) as relay, visiting(relay) as visitor:
        await be_away(relay, hours=5)
        await notice_absences(relay)
        form = (await visitor.see("/reconciliations")).form(BEGIN)
        fields = form.fields() | {"kind": "lead.captured"}
        assert (await visitor.post(BEGIN, fields)).status_code == 303
        await has_ended(relay)
        (change,) = await relay.service._store.audit.newest(limit=1)
        assert change.asked["events"] == ["lead.captured"]


async def test_a_run_names_people_to_admins_and_hides_them_from_viewers(tmp_path: Path) -> None:
    config = service.read(tmp_path, tables=API + ADMIN)
    async with service.serving(config) as relay:
        runs = relay.service._store.reconstructions
        run = await runs.begin("main", since_ms=1, until_ms=2, dry_run=False, now_ms=3)
        facts = [
            {"outcome": "reconstructed", "kind": "lead.captured", "person": ADA, "event": "r-1"},
            {"outcome": "unknown", "kind": "video.watched", "person": ADA, "why": "older"},
            {"outcome": "left", "kind": "video.ready", "video": "vid_1", "title": f"By {ADA}"},
        ]
        await runs.end(run, "done", report={"named": facts}, place=None, now_ms=4)
        async with visiting(relay) as admin:
            rows = (await admin.see("/reconciliations/1")).rows()
            assert [row[2] for row in rows] == [ADA, ADA, ""]
            assert "may be older than the relay's knowledge" in rows[1][4]
            await admin.see("/reconciliations")
            assert ADA not in admin.html
        async with visiting(relay, token=VIEWER_TOKEN) as viewer:
            page = await viewer.see("/reconciliations/1")
            assert ADA not in viewer.html
            assert page.rows()[2][3] == "By (address hidden)"


async def test_reconstructed_and_superseded_events_are_marked(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        store, now_ms = relay.service._store, relay.service._clock.now_ms()
        sample = event(LEAD_CAPTURED, source="main", event_id="evt_1")
        original = replace(sample, received_ms=now_ms)
        id_ = reconstruction.ids(original.kind, original.document())[0]
        made = replace(original, id=id_, reconstructed=True)
        await store.reconstructions.accept(made, (), person=None, stored=lambda _: None)
        await until_marked(visitor, "event-1", "reconstructed")
        mark = (await visitor.see("/events/1")).by_id("made").text
        assert "because the original was lost in an outage" in mark
        await store.accept(original, (), lambda _: None)
        page = await until_marked(visitor, "event-1", "superseded")
        assert "superseded" not in page.by_id("event-2").text
        mark = (await visitor.see("/events/1")).by_id("made").text
        assert "The original has arrived since" in mark


async def test_dead_letters_and_related_events_are_marked_too(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        store, now_ms = relay.service._store, relay.service._clock.now_ms()
        sample = event(LEAD_CAPTURED, source="main", event_id="evt_1")
        lead = replace(sample, received_ms=now_ms)
        made = replace(lead, id="reconstructed-1", reconstructed=True)
        dead = Verdict("leads", "fails", "when failed: TypeError")
        await store.reconstructions.accept(made, (dead,), person=None, stored=lambda _: None)
        await store.accept(replace(lead, id="evt_2"), (dead,), lambda _: None)
        page = await visitor.see("/dead-letters")
        assert "reconstructed " in page.by_id("dead-1-leads").text
        assert "reconstructed " not in page.by_id("dead-2-leads").text
        file = await visitor.client.get(page.links()["CSV"])
        rows = list(csv.DictReader(file.text.splitlines()))
        assert [row["mark"] for row in rows] == ["", "reconstructed"]
        await until_marked(visitor, "person-1", "reconstructed", path="/events/2")
        assert "reconstructed" not in (await visitor.see("/events/1")).by_id("person-2").text
