"""People on the page of a running relay: looked up, exported and erased."""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest

from relay.store.selection import PERSON_PATTERN
from relay.store.sqlite.driver import sqlite3
from tests.admin.page.document import Element, parse
from tests.admin.page.visiting import VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.admin.test_audience import watched
from tests.caller import post
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer

ANN = "ann.lee@example.com"
OTHER = "bob@example.com"
HOSTILE = "<script>alert(1)</script>\"'><img/src=x>@example.com"


@pytest.fixture
def relay(relay: Relay, destination: StubServer) -> Relay:
    destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
    return relay


async def looked_up(visitor: Visitor, email: str, *, status: int = 200) -> Element:
    form = (await visitor.see("/people")).form("/people")
    answer = await visitor.post("/people", {**form.fields(), "email": email})
    assert answer.status_code == status, answer.text
    visitor.html = answer.text
    return parse(answer.text)


async def send_events(relay: Relay) -> None:
    """One lead and one view of the person, delivered to a sink and refused by another."""
    await send(relay, body("evt_lead", email=ANN), watched("evt_view", ANN.upper()))
    await send(relay, body("evt_other", email=OTHER))
    await relay.until_counted("relay_deliveries_total", "delivered", "all", value=3)
    await relay.until_counted("relay_deliveries_total", "dead", "leads", value=2)
    while await relay.service._store.audience.fill():
        pass


def table(page: Element, label: str) -> Element:
    return next(each for each in page.all("div") if each.attributes.get("aria-label") == label)


def places(page: Element) -> dict[str, str]:
    return {name: count for name, count, _ in table(page, "Counts by place").rows()}


async def test_a_lookup_shows_what_is_stored_and_who_has_received_it(
    relay: Relay, visitor: Visitor
) -> None:
    await send_events(relay)
    page = await looked_up(visitor, f"  {ANN.title()} ")
    assert page.all("h1")[0].text == ANN.title()
    assert places(page) == {
        "Events": "2",
        "Pending": "0",
        "Dead": "1",
        "Unreadable": "0",
        "Quarantine": "0",
        "Reports": "0",
        "Excerpts": "0",
        "Reasons": "0",
        "Searches": "0",
        "Views": "2",
        "Videos": "0",
    }
    told = {tuple(row[:3]) for row in table(page, "Delivered to").rows()}
    assert told == {("all", "lead.captured", "1"), ("all", "video.watched", "1")}
    (unconfirmed,) = table(page, "Possibly delivered to").rows()
    assert unconfirmed[:2] == ["leads", "lead.captured"]
    newest = [row[0] for row in table(page, "Newest events").rows()]
    assert newest == ["video.watched evt_view", "lead.captured evt_lead"]
    digest = page.all("b", class_="mono")[0].text
    assert re.fullmatch(PERSON_PATTERN, digest)
    assert page.links()["All events"] == f"/events?person={digest}"


async def test_no_url_and_no_log_contains_an_address(relay: Relay, visitor: Visitor) -> None:
    await send_events(relay)
    page = await looked_up(visitor, ANN)
    targets = [each.attributes.get("href") or "" for each in page.all()]
    targets += [each.attributes.get("action") or "" for each in page.all("form")]
    assert not [each for each in targets if "@" in each or "%40" in each]
    await looked_up(visitor, "not an address", status=400)
    assert "example.com" not in relay.log


async def test_an_erasure_needs_the_address_twice_and_reports(
    relay: Relay, visitor: Visitor
) -> None:
    await send_events(relay)
    page = await looked_up(visitor, ANN)
    fields = page.form("/people/erase").fields()
    assert fields["email"] == ANN
    for typed in ("", OTHER, f"x{ANN}"):
        answer = await visitor.post("/people/erase", {**fields, "typed": typed})
        seen = await visitor.see(answer.headers["location"])
        assert "nothing was erased" in seen.by_id("notice").text
    assert places(await looked_up(visitor, ANN))["Events"] == "2"

    answer = await visitor.post("/people/erase", {**fields, "typed": f" {ANN.upper()} "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/people/erasures/1")
    report = await visitor.see("/people/erasures/1")
    assert (places(report)["Events"], places(report)["Dead"]) == ("2", "1")
    assert {row[0] for row in table(report, "Delivered to").rows()} == {"all"}
    assert ANN not in visitor.html.lower()
    assert "overwritten" in report.by_id("wiped").text
    (row,) = table(await visitor.see("/people"), "Past erasures").rows()
    assert (row[0], row[2], row[4], row[5]) == ("Erasure 1", "done", "2", "1")
    page = await looked_up(visitor, ANN)
    assert "Nothing holds this address" in page.text
    assert page.by_id("earlier").links() == {"erasure 1": "/people/erasures/1"}
    assert places(await looked_up(visitor, OTHER))["Events"] == "1"
    async with operating(relay) as operator:
        (change,) = (await operator.get("/audit"))["changes"]
    assert (change["operation"], change["via"], change["status"]) == ("erase_person", "page", 200)
    assert "example.com" not in str(change)


async def test_an_export_is_a_file_with_all_of_a_person_and_is_audited(
    relay: Relay, visitor: Visitor
) -> None:
    await send_events(relay)
    for email, found in ((ANN, (2, 2)), ("nobody@example.com", (0, 0))):
        form = (await looked_up(visitor, email)).form("/people/export")
        answer = await visitor.post("/people/export", form.fields())
        assert answer.headers["content-disposition"] == 'attachment; filename="person.json"'
        assert answer.headers["cache-control"] == "no-store"
        document = answer.json()
        assert list(document) == ["events", "unreadable", "mentions", "views", "watched"]
        assert (len(document["events"]), len(document["views"])) == found
        assert OTHER not in answer.text
    async with operating(relay) as operator:
        changes = (await operator.get("/audit"))["changes"]
    assert {each["operation"] for each in changes} == {"export_person"}


async def test_an_export_joins_the_parts_of_much_data(
    relay: Relay, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.personal_data_export.PART_BYTES", 1)
    await send_events(relay)
    await send(relay, *(body(f"evt_{number}", email=ANN) for number in range(3)))
    assert (await relay.ask(post(f"not JSON: {ANN}".encode()))).status == 200
    form = (await looked_up(visitor, ANN)).form("/people/export")
    async with asyncio.timeout(20):
        # Views are counted a moment after their events.
        while True:
            document = (await visitor.post("/people/export", form.fields())).json()
            if len(document["views"]) == 5:
                break
            await asyncio.sleep(0.05)
    assert [each["event"]["id"] for each in document["events"]] == [
        "evt_lead",
        "evt_view",
        "evt_0",
        "evt_1",
        "evt_2",
    ]
    assert len(document["unreadable"]) == 1


async def test_viewers_open_nothing_of_people(relay: Relay, visitor: Visitor) -> None:
    await send_events(relay)
    async with visiting(relay, token=VIEWER_TOKEN) as viewer:
        page = await viewer.see("/")
        assert "People" not in page.links()
        token = page.form("/find").fields()["form_token"]
        for path in ("/people", "/people/erasures/1"):
            await viewer.see(path, status=403)
        for path in ("/people", "/people/export", "/people/erase"):
            answer = await viewer.post(path, {"form_token": token, "email": ANN, "typed": ANN})
            assert answer.status_code == 403
            assert "Ann" not in answer.text
    assert places(await looked_up(visitor, ANN))["Events"] == "2"


@pytest.mark.parametrize("email", ["", "ann", "a@", "a b@", f"{'a' * 500}@example.com", "a@b@c"])
async def test_an_invalid_address_is_reported(visitor: Visitor, email: str) -> None:
    page = await looked_up(visitor, email, status=400)
    assert page.all("h1")[0].text == "Bad Request"
    assert "email" not in page.by_id("main").text or len(email) > 400


async def test_an_unknown_erasure_is_not_found(visitor: Visitor) -> None:
    assert "no erasure 7" in (await visitor.see("/people/erasures/7", status=404)).text
    await visitor.see("/people/erasures/x", status=404)
    await visitor.see("/people?email=a@b", status=400)


async def test_an_interrupted_erasure_is_to_be_repeated(
    relay: Relay, visitor: Visitor, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(str(tmp_path / "relay.db"))) as db:
        db.execute("INSERT INTO erasures (begun_at, person) VALUES (1, x'00')")
        db.commit()
    (row,) = table(await visitor.see("/people"), "Past erasures").rows()
    assert (row[2], row[4]) == ("not finished", "?")
    assert "erase again" in (await visitor.see("/people/erasures/1")).text


async def test_hostile_names_are_text(relay: Relay, visitor: Visitor) -> None:
    hidden = f"a\u202e{HOSTILE}"
    await send(relay, body(HOSTILE, email=hidden))
    page = await looked_up(visitor, hidden)
    assert page.all("h1")[0].text == f"a[U+202E]{HOSTILE}"
    assert page.form("/people/erase").fields()["email"] == hidden
    (newest,) = table(page, "Newest events").rows()
    assert newest[0].startswith("lead.captured <script>")
    assert "<script>alert" not in visitor.html
    assert "<img" not in visitor.html
