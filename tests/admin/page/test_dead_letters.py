"""Dead letters on the page of a running relay: by cause, one by one, and as a file."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from relay.admin.page import visit
from relay.admin.page.filters import REASON_MAX
from relay.admin.page.views.dead_letters import section as view
from relay.admin.page.views.dead_letters.section import cause_of
from relay.store.dead_letters import Reason
from relay.store.sqlite.driver import sqlite3
from tests.admin.page.document import Element
from tests.admin.page.visiting import HOSTILE, VIEWER_TOKEN, Start, Visitor, visiting
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, Request, StubServer


def refuse_leads(request: Request) -> Reply:
    is_refused = request.target == "/leads" and b"taken-" not in request.body
    return Reply(422 if is_refused else 200)


@pytest.fixture
def destination(destination: StubServer) -> StubServer:
    destination.reply = refuse_leads
    return destination


async def kill(relay: Relay, *bodies: bytes) -> None:
    """Send events, and wait until all are dead letters of the sink `leads`."""
    name, dead = "relay_deliveries_total", 0
    for taken, some in enumerate(batched(bodies, 4)):
        if taken:
            # The fifth refusal with no success between them would park the sink.
            await send(relay, body(f"taken-{taken}"))
            await relay.until_counted(name, "delivered", "leads", value=taken)
        await send(relay, *some)
        dead += len(some)
        await relay.until_counted(name, "dead", "leads", value=dead)
        await relay.until_counted(name, "delivered", "all", value=dead + taken)


def batched(bodies: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(bodies), size):
        yield bodies[start : start + size]


def causes(page: Element) -> Sequence[Sequence[str]]:
    return [row[:3] for row in page.rows() if row[-1].startswith("Events")]


def letters(page: Element) -> list[str]:
    return [row[0] for row in page.rows() if len(row) == 7]


def query(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query)


async def changes(relay: Relay) -> list[tuple[str, str]]:
    async with operating(relay) as operator:
        rows = (await operator.get("/audit"))["changes"]
    return [(row["operation"], row["via"]) for row in rows]


async def test_a_relay_without_dead_letters_says_what_they_are(visitor: Visitor) -> None:
    page = await visitor.see("/dead-letters")
    assert "Nothing was given up" in visitor.html
    assert "Every verified request held an event" in visitor.html
    assert not page.rows()


async def test_dead_letters_are_listed_by_cause_and_one_by_one(
    visitor: Visitor, relay: Relay
) -> None:
    await kill(relay, body("a"), body("b"))
    page = await visitor.see("/dead-letters")
    assert causes(page) == [["leads", "422: the destination refuses this event", "2"]]
    assert letters(page) == ["lead.captured b", "lead.captured a"]
    assert page.by_id("causes-total").text == "2 dead letters, 1 cause"
    assert page.by_id("dead-count").text == "2"
    assert page.links()["lead.captured"] == "/events/1"


async def test_a_cause_leads_to_its_events_and_to_the_confirmations(
    visitor: Visitor, relay: Relay
) -> None:
    await kill(relay, body("a"))
    page = await visitor.see("/dead-letters?kind=lead.*&source=main")
    hrefs = [each["href"] for each in page.by_id("causes").all("a")]
    assert [urlsplit(each).path for each in hrefs] == [
        "/sinks/leads",
        "/events",
        "/events/replay",
        "/events/discard",
    ]
    assert query(hrefs[2]) == {
        "sink": ["leads"],
        "outcome": ["dead"],
        "reason": ["422: the destination refuses this event"],
        "kind": ["lead.*"],
        "source": ["main"],
    }
    for href in hrefs:
        await visitor.see(href)


async def test_a_filter_selects_causes_and_letters_and_stays_in_the_form(
    visitor: Visitor, relay: Relay
) -> None:
    await kill(relay, body("a"))
    page = await visitor.see("/dead-letters?sink=leads&reason=422&kind=lead.*&source=main")
    assert letters(page) == ["lead.captured a"]
    assert page.form("/dead-letters").fields() == {"reason": "422", "kind": "lead.*"}
    chosen = [each.text for each in page.all("option") if "selected" in each.attributes]
    assert chosen == ["leads", "main"]
    page = await visitor.see("/dead-letters?reason=teapot")
    assert not causes(page)
    assert "No dead letter matches this filter." in visitor.html
    await visitor.see("/dead-letters?sink=nobody", status=404)
    await visitor.see("/dead-letters?colour=red", status=400)
    await visitor.see("/dead-letters?before=x", status=400)


async def test_the_rarest_causes_are_left_out_and_said_to_be(
    start: Start,
    destination: StubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "CAUSES_SHOWN", 1)
    destination.reply = lambda request: (
        Reply() if request.target == "/all" else Reply(400 if b"rare" in request.body else 422)
    )
    async with start() as relay, visiting(relay) as visitor:
        await kill(relay, body("a"), body("b"), body("rare"))
        page = await visitor.see("/dead-letters")
        assert [row[2] for row in causes(page)] == ["2"]
        assert page.by_id("causes-total").text == "3 dead letters, 2 causes"
        assert page.by_id("more-causes").text.startswith("1 rarer left out")


async def test_pages_follow_one_another(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PAGE_ROWS", 2)
    async with start() as relay, visiting(relay) as visitor:
        await kill(relay, *(body(f"e{number}") for number in range(3)))
        page = await visitor.see("/dead-letters?sink=leads")
        assert letters(page) == ["lead.captured e2", "lead.captured e1"]
        page = await visitor.see(page.links()["Older"])
        assert letters(page) == ["lead.captured e0"]
        assert causes(page)[0][2] == "3"
        assert page.links()["Newest"] == "/dead-letters?sink=leads"


async def test_one_letter_is_replayed_once_its_cause_is_fixed(
    destination: StubServer, visitor: Visitor, relay: Relay
) -> None:
    await kill(relay, body("a"))
    page = await visitor.see("/dead-letters")
    destination.reply = lambda _: Reply()
    page = await visitor.submit(page.form("/dead-letters/replay"))
    assert page.by_id("notice").text == "a goes to leads again."
    await relay.until_counted("relay_deliveries_total", "delivered", "leads")
    assert not letters(await visitor.see("/dead-letters"))
    assert await changes(relay) == [("begin_replay", "page")]


async def test_one_letter_is_discarded_and_the_filter_stays(visitor: Visitor, relay: Relay) -> None:
    await kill(relay, body("a"), body("b"))
    visitor.client.headers["referer"] = f"{visitor.origin}/dead-letters?sink=leads"
    form = (await visitor.see("/dead-letters?sink=leads")).form("/dead-letters/discard")
    page = await visitor.submit(form)
    assert page.by_id("notice").text.startswith("b to leads is discarded.")
    assert letters(page) == ["lead.captured a"]
    assert [each.text for each in page.all("option") if "selected" in each.attributes] == ["leads"]
    page = await visitor.submit(form)
    assert page.by_id("notice").text == "b to leads is no dead letter any more."
    assert await changes(relay) == [("discard_dead_letters", "page")] * 2


async def test_the_file_holds_all_that_the_filter_selects(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PAGE_MAX", 1)
    async with start() as relay, visiting(relay) as visitor:
        await kill(relay, *(body(f"e{number}") for number in range(101)))
        page = await visitor.see("/dead-letters?sink=leads")
        answer = await visitor.client.get(page.links()["CSV"])
        assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters.csv"'
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [row["id"] for row in rows] == [f"e{number}" for number in reversed(range(101))]
        assert (rows[0]["sink"], rows[0]["attempts"]) == ("leads", "1")


async def test_a_viewer_sees_the_causes_without_addresses_and_changes_nothing(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as visitor:
        await kill(relay, body("a", email="ada@example.com"))
        page = await visitor.see("/dead-letters?reason=422")
        assert causes(page) == [["leads", "422: the destination refuses this event", "1"]]
        actions = {each["action"] for each in page.all("form") if "action" in each.attributes}
        assert actions == {"/find", "/logout", "/dead-letters"}
        assert not [link for link in page.links().values() if link.startswith("/events/replay")]
        assert "ada@example.com" not in visitor.html
        token = page.form("/logout").fields()["form_token"]
        fields = {"form_token": token, "id": "a", "source": "main", "sink": "leads"}
        for path in ("/dead-letters/discard", "/dead-letters/replay"):
            assert (await visitor.post(path, fields)).status_code == 403
        assert await changes(relay) == []


async def test_a_viewer_reads_and_tries_out_no_address(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as visitor:
        await kill(relay, body("of-ada@example.com"))
        await send(relay, body("b", "kind-of-ada%40example.com"))
        for path in ("/dead-letters", "/dead-letters.csv"):
            text = (await visitor.client.get(path)).text
            assert "(address hidden)" in text, path
            assert not re.search("ada(@|%)", text), path
        await visitor.see("/dead-letters?kind=lead.unknown", status=404)
        assert "Known: " in visitor.html
        assert "example.com" not in visitor.html
        for path in ("/dead-letters", "/dead-letters.csv"):
            for value in ("ada@example.com", "ada@", "ada%2540"):
                await visitor.see(f"{path}?reason={value}", status=403)


async def test_a_viewer_cannot_spell_out_an_address_in_a_reason(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as visitor:
        await kill(relay, body("a"))
        with contextlib.closing(sqlite3.connect(relay.service._store.location)) as db:
            db.execute("UPDATE deliveries SET reason = '422: ada@example.com is known'")
            db.commit()
        for path in ("/dead-letters", "/dead-letters.csv", "/events", "/events.csv"):
            for value in ("ada", "example", "e"):
                answer = await visitor.client.get(path, params={"reason": value})
                assert answer.status_code == (200 if value == "e" else 403), (path, value)
            assert (await visitor.client.get(path, params={"reason": "422"})).status_code == 200


async def test_a_hostile_id_or_reason_is_the_same_in_rows_forms_and_notices(
    visitor: Visitor, relay: Relay
) -> None:
    await kill(relay, body(HOSTILE))
    row = (await visitor.see("/dead-letters")).by_id("dead-1-leads")
    assert row.all("span", class_="mono")[0]["title"] == HOSTILE
    page = await visitor.see("/dead-letters?reason=" + HOSTILE.replace('"', "%22"))
    assert page.form("/dead-letters").fields()["reason"] == HOSTILE
    form = (await visitor.see("/dead-letters")).form("/dead-letters/replay")
    assert (await visitor.submit(form)).by_id("notice").text == f"{HOSTILE} goes to leads again."


def test_the_filter_of_a_cause_stops_before_an_address() -> None:
    def part(reason: str | None) -> str | None:
        chosen = cause_of(Reason("crm", reason, 1, None, None)).chosen
        return None if chosen is None else chosen["reason"]

    assert part("422: no list of ada@example.com here") == "422: no list of"
    assert part("ada@example.com is unknown") is None
    assert part(None) is None
    assert part("x" * 1000) == "x" * REASON_MAX
