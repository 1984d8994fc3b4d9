"""The view of one event on a running relay."""

import contextlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.admin.page.text.json_text import CHARACTERS_MAX
from relay.store.sqlite.driver import sqlite3
from tests.admin.page.document import Element
from tests.admin.page.visiting import ADA, HOSTILE, REORDERING, Start, Visitor, visiting
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer


def change(folder: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "relay.db")) as db, db:
        db.execute(sql)


def lead(event_id: str = "a", **fields: object) -> bytes:
    video = {"id": "vid_1", "title": "Tour"}
    return body(event_id, "lead.captured", email=ADA, video=video, fields=fields)


async def changes(relay: Relay) -> list[dict[str, Any]]:
    async with operating(relay) as operator:
        listed: list[dict[str, Any]] = (await operator.get("/audit"))["changes"]
    return listed


def card(page: Element, heading: str) -> Element:
    """The section under a heading."""
    (title,) = (each for each in page.all("h2") if each.text == heading)
    return next(
        each
        for each in page.all("section")
        if each.attributes.get("aria-labelledby") == title["id"]
    )


def steps(page: Element) -> list[str]:
    return [
        each.all("div", class_="body")[0].text
        for each in page.by_id("steps").all("li")
        if "gap" not in each.classes
    ]


async def test_one_event_is_shown_with_its_content_its_routes_and_every_attempt(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: (
        Reply(422, b"no such field") if request.target == "/leads" else Reply()
    )
    await send(relay, lead(company="Northwind", n=1.10))
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    page = await visitor.see("/events/1")
    assert page.all("h1")[0].text == f"lead.captured of {ADA}"
    assert {each.text for each in page.by_id("deliveries").all("span")} == {
        "all delivered",
        "leads dead",
    }
    received, *attempts = steps(page)
    assert received == "Received verified and stored, for all and leads"
    assert any(each.startswith("all delivered 200, in ") for each in attempts)
    (dead,) = (each for each in attempts if each.startswith("leads became a dead letter 422"))
    assert dead.endswith(" UTC no such field")
    assert len(attempts) == 2
    body_card = card(page, "Body")
    shown = body_card.by_id("body-text")
    assert '"company": "Northwind"' in shown.raw_text
    assert '"n": 1.1' in shown.raw_text
    assert '"email"' in [each.text for each in shown.all("span", class_="k")]
    routes = card(page, "Why these sinks")
    assert routes.by_id("route-leads").text.startswith("leads takes it events and sources")
    assert "does not take it lead.captured matches nothing" in (routes.by_id("route-tests").text)
    assert "service-signature" in [
        each.text for each in card(page, "Headers as received").all("dt")
    ]


async def test_the_body_is_shown_raw_and_as_each_sink_gets_it_and_can_be_downloaded(
    relay: Relay, visitor: Visitor
) -> None:
    sent = lead()
    await send(relay, sent)
    page = await visitor.see("/events/1?body=raw")
    assert page.by_id("body-text").raw_text.lstrip("\n") == sent.decode()
    assert page.all("button")
    page = await visitor.see("/events/1?body=as:leads")
    message = card(page, "Body")
    assert "relay-event" in [each.text for each in message.all("dt")]
    assert ADA in message.all("pre")[0].raw_text
    await visitor.see("/events/1?body=as:nobody", status=404)
    await visitor.see("/events/1?body=cooked", status=400)
    download = await visitor.client.get("/events/1/body")
    assert download.content == sent
    assert download.headers["content-type"] == "application/octet-stream"
    assert download.headers["content-disposition"] == 'attachment; filename="event-1.json"'


async def test_a_message_that_cannot_be_rendered_is_reported_with_its_cause(start: Start) -> None:
    slack = """
[[sink]]
name = "slack"
type = "slack"
url = "https://hooks.slack.test/services/T0/B0/x"
events = ["lead.captured"]
text = "{{ data.email.split('@')[1] }}"
"""
    async with start(slack) as relay, visiting(relay) as visitor:
        await send(relay, body("a", "lead.captured", email=7))
        page = await visitor.see("/events/1?body=as:slack")
        assert "The sink cannot make a message of it" in card(page, "Body").text


async def test_a_message_says_what_it_lacks_until_it_is_sent(start: Start) -> None:
    enriched = """
[source.api]
base_url = "http://127.0.0.1:9"
key = "an-api-key-of-the-tests"

[[sink]]
name = "enriched"
type = "http"
url = "http://127.0.0.1:9/hook"
enrich = true
"""
    async with start(enriched) as relay, visiting(relay) as visitor:
        await send(relay, lead(), body("v", "video.ready"))
        page = await visitor.see("/events/1?body=as:enriched")
        assert page.by_id("remark").text == (
            "What the person has watched is asked when the message is sent, and not shown here."
        )
        for path in ("/events/1?body=as:all", "/events/2?body=as:enriched"):
            await visitor.see(path)
            assert 'id="remark"' not in visitor.html
        page = await visitor.see("/sinks/enriched/try?seq=1")
        assert "not shown here" in page.by_id("remark").text


async def test_events_link_to_their_neighbours_and_to_those_of_the_same_person_and_video(
    relay: Relay, visitor: Visitor
) -> None:
    watched = body(
        "w",
        "video.watched",
        milestone="75%",
        viewer={"email": ADA},
        video={"id": "vid_1", "title": "Tour"},
    )
    await send(relay, watched, lead(), body("z", "video.ready"))
    # The audience counts events after their acknowledgement.
    while await relay.service._store.audience.fill():
        pass
    page = await visitor.see("/events/2")
    assert page.text.count("watched 75% of Tour") == 2
    links = page.by_id("head").links()
    assert (links["Older"], links["Newer"]) == ("/events/1", "/events/3")
    person = card(page, "The same person")
    assert person.links()["watched 75% of Tour"] == "/events/1"
    all_of_person = person.links()["All of this person"]
    assert all_of_person.startswith("/events?person=")
    assert "@" not in all_of_person
    assert "%40" not in all_of_person
    assert card(page, "The same video").links()["All of this video"] == "/events?video=vid_1"
    assert "Older" not in (await visitor.see("/events/1")).by_id("head").links()
    assert "Newer" not in (await visitor.see("/events/3")).by_id("head").links()


async def test_a_pending_delivery_is_retried_and_discarded_from_the_page(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: Reply(503 if request.target == "/leads" else 200)
    await send(relay, lead())
    await relay.until_counted("relay_attempts_total", "retry", "leads")
    # A form to retry that one would come first.
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    page = await visitor.see("/events/1")
    assert steps(page)[-1].startswith("leads try 2")
    assert "pending" in page.by_id("deliveries").text
    page = await visitor.submit(page.form("/events/1/retry"))
    assert page.by_id("notice").text == "leads is tried now."
    page = await visitor.submit(page.form("/events/1/discard"))
    assert page.by_id("notice").text.startswith("The delivery to leads is discarded")
    assert steps(page)[-1].startswith("leads discarded by an operator after: 503")
    assert "leads discarded" in page.by_id("deliveries").text
    assert [(each["operation"], each["target"], each["via"]) for each in await changes(relay)] == [
        ("discard_delivery", "leads", "page"),
        ("retry_sink", "leads", "page"),
    ]


async def test_the_replay_of_an_event_selects_no_other_whose_id_begins_with_its_own(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, lead("a"), lead("ab"))
    await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
    await relay.until_counted("relay_deliveries_total", "delivered", "all", value=2)
    page = await visitor.see("/events/1")
    assert page.by_id("head").links()["Replay…"] == "/events/replay?exact_id=a&source=main"
    page = await visitor.see(card(page, "Why these sinks").links()["Replay to leads…"])
    page = await visitor.see("/events?exact_id=a")
    assert len(page.rows()) == 1


async def test_a_viewer_sees_what_happened_and_nothing_of_the_content(
    destination: StubServer, relay: Relay, viewer: Visitor
) -> None:
    destination.reply = lambda _: Reply(422, b"refused for ada@example.com, code 77123")
    watched = body("w", "video.watched", milestone="25%", video={"id": ADA, "title": ADA})
    await send(relay, lead(f"id-of-{ADA}", company="Northwind"), watched)
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    await relay.until_counted("relay_deliveries_total", "dead", "all", value=2)
    for path in ("/events/2", "/events/1?body=raw", "/events/1?body=as:leads", "/events/1"):
        page = await viewer.see(path)
        for hidden in (ADA, "ada%40", "Northwind", "service-signature", "77123", "person="):
            assert hidden not in viewer.html
    assert "leads dead" in page.by_id("deliveries").text
    assert len(steps(page)) == 3
    assert page.by_id("route-leads").text == "leads takes it"
    assert not any("/events" in (each.attributes.get("action") or "") for each in page.all("form"))
    assert "Bodies are hidden from viewers." in card(page, "Body").text
    await viewer.see("/events/1/body", status=403)


async def test_hostile_text_in_every_field_is_shown_as_text(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda _: Reply(422, REORDERING.encode())
    hostile = {
        "id": HOSTILE,
        "event": f"lead.captured{HOSTILE}",
        "createdAt": REORDERING,
        REORDERING: "\0\u2066",
        "data": {"email": f"{REORDERING}@x", "video": {"id": HOSTILE, "title": REORDERING}},
    }
    watched = {
        "id": "w",
        "event": "video.watched",
        "data": {"milestone": "25%", "video": {"id": HOSTILE, "title": REORDERING}},
    }
    await send(relay, orjson.dumps(hostile), orjson.dumps(watched))
    await relay.until_counted("relay_deliveries_total", "dead", "all", value=2)
    for path in ("/events/1", "/events/2", "/events/1?body=raw", "/events/1?body=as:all"):
        page = await visitor.see(path)
        (script,) = page.all("script")
        assert script["src"].startswith("/assets/")
        assert page.all("img") == []
        assert "\u202e" not in page.raw_text
        assert "[U+202E]" in page.raw_text
        assert not any(name.startswith("on") for each in page.all() for name in each.attributes)


async def test_a_large_and_deep_body_is_cut_off_and_stays_quick_to_open(start: Start) -> None:
    async with start() as relay, visiting(relay) as visitor:
        deep = "[" * 900 + "]" * 900
        large = b'{"id":"a","event":"video.ready","data":{"deep":%b,"list":[%b]}}' % (
            deep.encode(),
            b",".join([b'"<&>"'] * 100_000),
        )
        await send(relay, large)
        for form in ("pretty", "raw"):
            page = await visitor.see(f"/events/1?body={form}")
            assert "Only the beginning is shown." in card(page, "Body").text
            assert len(page.by_id("body-text").raw_text) <= CHARACTERS_MAX + 1
        assert (await visitor.client.get("/events/1/body")).content == large


async def test_an_event_without_a_body_says_why(start: Start, tmp_path: Path) -> None:
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, lead())
        await relay.until_counted("relay_deliveries_total", "delivered", "all")
        await relay.until_counted("relay_deliveries_total", "delivered", "leads")
        change(tmp_path, "UPDATE events SET body = NULL, headers = NULL")
        page = await visitor.see("/events/1")
        assert "their retention is over, or they were erased" in card(page, "Body").text
        assert "cannot be evaluated" in page.by_id("route-leads").text
        (disabled,) = (each for each in page.all("button") if "disabled" in each.attributes)
        assert disabled["title"] == "The body is gone, so there is nothing to deliver."
        await visitor.see("/events/1/body", status=404)


async def test_an_erased_event_says_that_it_was_erased(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda _: Reply(422)
    await send(relay, lead())
    await relay.until_counted("relay_deliveries_total", "dead", "all")
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    async with operating(relay) as operator:
        await operator.post("/people/erase", {"email": ADA})
    page = await visitor.see("/events/1")
    assert "were erased with the data of the person" in card(page, "Body").text
    assert ADA not in visitor.html


async def test_a_damaged_body_is_named_and_shown(start: Start, tmp_path: Path) -> None:
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, lead())
        await relay.until_counted("relay_deliveries_total", "delivered", "all")
        change(tmp_path, """UPDATE events SET body = CAST('{"id": nonsense' AS BLOB)""")
        page = await visitor.see("/events/1")
        assert page.by_id("damaged").text.startswith("The stored body is damaged")
        assert "This is not JSON" in card(page, "Body").text
        assert page.by_id("body-text").text == '{"id": nonsense'
        page = await visitor.see("/events/1?body=as:leads")
        assert "no sink gets it" in card(page, "Body").text


async def test_the_latest_of_a_thousand_attempts_are_shown_with_a_link_to_the_earlier_ones(
    tmp_path: Path, relay: Relay, visitor: Visitor
) -> None:
    await send(relay, body("a", "video.ready"))
    await relay.until_counted("relay_deliveries_total", "delivered", "all")
    change(
        tmp_path,
        """
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
            INSERT INTO attempts (event, sink, started_at, duration_ms, result, reason, answer)
            SELECT event, sink, started_at - 1000000 + i, 5, 'retry', 'refused', '' FROM attempts, n
            """,
    )
    page = await visitor.see("/events/1")
    assert len(steps(page)) == 101
    assert "all delivered at try 1000" in steps(page)[-1]
    link = page.by_id("earlier").links()["900 earlier attempts"]
    page = await visitor.see(link)
    assert steps(page)[-1].startswith("all try 900 failed")
    assert page.by_id("later").links()["The latest attempts"] == "/events/1#steps"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/events/999", 404),
        ("/events/999/body", 404),
        ("/events/x", 404),
        ("/events/99999999999999999999", 404),
        ("/events/1?attempts=-1", 400),
        ("/events/1?nothing=1", 400),
    ],
)
async def test_a_bad_address_gets_a_page_that_says_so(start: Start, path: str, status: int) -> None:
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, body("a", "video.ready"))
        page = await visitor.see(path, status=status)
        assert page.all("h1")
