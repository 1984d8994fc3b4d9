"""Absences of the relay on its page, and their acknowledgement."""

from pathlib import Path

from tests import service
from tests.admin.page.visiting import ADMIN, Visitor, visiting
from tests.operator import operating
from tests.service import Relay

HOUR_MS = 3_600_000


async def be_away(relay: Relay, *, hours: int) -> None:
    """Record an absence that ends now; of several hours, the sender's retries do not last."""
    store, now_ms = relay.service._store, relay.service._clock.now_ms()
    absence = await store.absences.beat(now_ms=now_ms + hours * HOUR_MS, cause="crashed", over_ms=1)
    assert absence is not None


async def test_a_loss_is_acknowledged_once(relay: Relay, visitor: Visitor) -> None:
    await be_away(relay, hours=5)
    page = await visitor.see("/")
    assert page.by_id("absences").rows()[0][0].endswith("It ended without closing its store")
    form = page.form("/absences/1/acknowledge")
    page = await visitor.submit(form)
    assert page.by_id("notice").text.startswith("Absence 1 is acknowledged")
    assert "acknowledged" in page.rows()[0][3]
    assert "/absences/1/acknowledge" not in visitor.html
    assert not (await visitor.see("/")).has_id("absences")
    async with operating(relay) as operator:
        (change,) = (await operator.get("/audit"))["changes"]
    assert (change["operation"], change["target"]) == ("acknowledge_absence", "1")
    assert "Acknowledged absence 1" in (await visitor.see("/changes")).rows()[0][0]


async def test_an_absence_without_loss_needs_no_acknowledgement(tmp_path: Path) -> None:
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        store, now_ms = relay.service._store, relay.service._clock.now_ms()
        await store.absences.beat(now_ms=now_ms + 60_000, cause="stopped", over_ms=1)
        page = await visitor.see("/absences")
        (row,) = page.rows()
        assert row[2:] == ["nothing the sender's retries outlasted it", ""]
        assert not (await visitor.see("/")).has_id("absences")


async def test_pages_of_absences_follow_one_another(relay: Relay, visitor: Visitor) -> None:
    for hours in (5, 10, 15):
        await be_away(relay, hours=hours)
    page = await visitor.see("/absences?limit=2")
    assert len(page.rows()) == 2
    page = await visitor.see(page.links()["Older"])
    assert len(page.rows()) == 1
    page = await visitor.see("/absences?limit=2&before=1")
    assert page.by_id("none").text == "No older absence."


async def test_a_relay_that_was_never_away_says_so(visitor: Visitor) -> None:
    page = await visitor.see("/absences")
    assert page.by_id("none").text.startswith("The relay was never away.")
    await visitor.see("/absences?x=1", status=400)
    await visitor.see("/absences?before=x", status=400)


async def test_viewers_see_absences_and_acknowledge_none(relay: Relay, viewer: Visitor) -> None:
    await be_away(relay, hours=5)
    for path in ("/", "/absences"):
        page = await viewer.see(path)
        assert "It ended without closing its store" in page.text
        assert "/absences/1/acknowledge" not in viewer.html
    token = page.form("/logout").fields()["form_token"]
    answer = await viewer.post("/absences/1/acknowledge", {"form_token": token})
    assert answer.status_code == 403


async def test_an_unknown_absence_is_reported(visitor: Visitor) -> None:
    token = (await visitor.see("/")).form("/logout").fields()["form_token"]
    answer = await visitor.post("/absences/99/acknowledge", {"form_token": token})
    page = await visitor.see(answer.headers["location"])
    assert page.by_id("notice").text == "There is no absence 99."
