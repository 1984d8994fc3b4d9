"""Events tried on a sink on the page of a running relay: nothing is sent."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from relay.admin.page.forms import FORM_MAX
from relay.admin.page.views.sinks import trial as view
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.admin.page.document import Element, parse
from tests.admin.page.visiting import ADMIN, Visitor
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import StubServer

HOSTILE = "<script>alert(1)</script>\"'><img src=x></textarea>\u202egpj"

TABLES = """
[[sink]]
name = "ruled"
type = "http"
url = "{url}"
events = ["lead.captured", "webhook.test"]
sources = ["main"]
when = "data.score > `3`"
headers = {{ "X-Key" = "a-secret-key" }}

[[sink]]
name = "filled"
type = "http"
url = "{url}/{{{{ data.id }}}}"
events = ["lead.captured"]
body = {{ email = "{{{{ data.email }}}}" }}

[[sink]]
name = "chat"
type = "slack"
url = "{url}"
events = ["lead.captured"]
"""


@pytest.fixture
async def relay(tmp_path: Path, destination: StubServer) -> AsyncIterator[Relay]:
    tables = ADMIN + TABLES.format(url=destination.url("/ruled"))
    async with service.serving(
        service.read(tmp_path, tables=tables, destination=destination)
    ) as relay:
        yield relay


async def paste(
    visitor: Visitor, text: str, *, sink: str = "ruled", source: str = "main", status: int = 200
) -> Element:
    page = await visitor.see(f"/sinks/{sink}/try")
    fields = page.form(f"/sinks/{sink}/try").fields() | {"source": source, "body": text}
    answer = await visitor.post(f"/sinks/{sink}/try", fields)
    assert answer.status_code == status, answer.text
    visitor.html = answer.text
    return parse(answer.text)


def verdicts(page: Element, title: str) -> list[tuple[str, str]]:
    """What stands in a list of verdicts, with its reason."""
    (card,) = (each for each in page.all("section") if each["aria-labelledby"] == title)
    return [(each.all("div")[0].text, each.all("p")[0].text) for each in card.all("li")]


def rules(page: Element) -> list[tuple[str, str]]:
    return verdicts(page, "rules-title")


async def test_a_template_that_fails_on_an_event_is_named(visitor: Visitor) -> None:
    page = await paste(visitor, body("evt_1", id="..", email="a@b").decode(), sink="filled")
    assert "url: nothing, . or .. would stand in the path" in page.text
    page = await paste(visitor, body("evt_1", id="lead_1").decode(), sink="filled")
    assert "body.email: line 1: email is missing in this event" in page.text


async def test_a_filled_url_is_shown_without_what_is_personal(visitor: Visitor) -> None:
    text = body("evt_1", id="ada", email="ada@example.com").decode()
    page = await paste(visitor, text, sink="filled")
    assert "/ruled/***" in page.text
    assert "/ruled/ada" not in page.text


async def test_an_event_that_the_sink_takes_is_shown_as_it_would_be_sent(
    relay: Relay, visitor: Visitor, destination: StubServer
) -> None:
    text = body("evt_1", score=4, name="Chloé Lefèvre").decode()
    page = await paste(visitor, text)
    assert page.by_id("verdict-title").text == "ruled takes this event"
    assert rules(page) == [
        ("events lead.captured, webhook.test", "lets it through"),
        ("sources main", "lets it through"),
        ("when data.score > `3`", "lets it through"),
    ]
    assert orjson.loads(page.all("pre")[0].raw_text) == orjson.loads(text)
    headers = [each.text for each in page.all("dd")]
    assert ("***" in headers, "a-secret-key" in headers) == (True, False)
    assert page.by_id("body").text == text
    assert "data-live-url" not in page.all("body")[0].attributes
    assert destination.requests == []
    assert relay.stored() == 0
    async with operating(relay) as operator:
        assert (await operator.get("/audit"))["changes"] == []


@pytest.mark.parametrize(
    ("text", "title", "why"),
    [
        (body("a", score=3), "does not take", "Because when is false: data.score > `3`."),
        (body("a", "video.ready"), "does not take", "Because video.ready matches nothing"),
        (body("a", score="x"), "cannot decide on", "The delivery would become a dead letter."),
    ],
)
async def test_an_event_that_the_sink_declines_shows_the_reason(
    visitor: Visitor, text: bytes, title: str, why: str
) -> None:
    page = await paste(visitor, text.decode())
    assert title in page.by_id("verdict-title").text
    assert why in page.by_id("verdict").text
    assert page.by_id("message-title").text == "What it would send if it took it"


async def test_each_rule_has_its_own_verdict(visitor: Visitor) -> None:
    page = await paste(visitor, body("a", "video.ready", score=9).decode())
    assert rules(page) == [
        ("events lead.captured, webhook.test", "video.ready matches nothing in events"),
        ("sources main", "lets it through"),
        ("when data.score > `3`", "lets it through"),
    ]
    page = await paste(visitor, body("a", "webhook.test", score=1).decode())
    assert rules(page)[2] == ("when data.score > `3`", "is false for this event")


async def test_the_other_sinks_get_it_as_well(visitor: Visitor) -> None:
    page = await paste(visitor, body("a").decode())
    assert verdicts(page, "others-title") == [
        ("filled takes", "events and sources match"),
        ("chat takes", "events and sources match"),
        ("all takes", "events and sources match"),
        ("leads takes", "events and sources match"),
        ("tests declines", "lead.captured matches nothing in events"),
    ]


async def test_input_that_is_not_an_event_is_explained(visitor: Visitor) -> None:
    for text, problem in (
        ("{", "This is no event: the body is not JSON."),
        ("[]", "This is no event: the body is not a JSON object."),
        ('{"id": 7}', "This is no event: id is not a text of 1 to 255 printable characters."),
        ('{"id": "a", "id": "b"}', "This is no event: the body has a duplicate key."),
        ("  ", "Nothing was pasted: the box is empty."),
        ("", "Nothing was pasted: the box is empty."),
    ):
        page = await paste(visitor, text)
        assert page.by_id("problem").text.startswith(problem)
        assert page.by_id("body").text == text.strip()
    await paste(visitor, "[" * 20_000)
    await paste(visitor, "{}", source="nowhere", status=404)
    await paste(visitor, "x" * FORM_MAX, status=413)


async def test_the_newest_stored_event_can_be_tried(relay: Relay, visitor: Visitor) -> None:
    await visitor.see("/sinks/ruled/try?seq=0", status=404)
    await send(relay, body("old"), body("new", score=5))
    page = await visitor.see("/sinks/ruled")
    page = await visitor.see(page.links()["Try the newest"])
    assert page.by_id("verdict-title").text == "ruled takes this event"
    assert page.links()["event 2"] == "/events/2"
    page = await visitor.see("/sinks/ruled/try?seq=1")
    assert page.by_id("verdict-title").text == "ruled does not take this event"
    await visitor.see("/sinks/ruled/try?seq=99", status=404)
    await visitor.see("/sinks/nobody/try", status=404)


async def test_a_stored_event_without_its_body_is_reported(relay: Relay, visitor: Visitor) -> None:
    await send(relay, body("a", email="ada@example.com"))
    async with operating(relay) as operator:
        await operator.post("/people/erase", {"email": "ada@example.com"})
    page = await visitor.see("/sinks/ruled/try?seq=1", status=200)
    assert "is gone" in page.by_id("problem").text


async def test_a_stored_event_with_a_damaged_body_is_not_tried(
    relay: Relay, visitor: Visitor, tmp_path: Path
) -> None:
    await send(relay, body("a"))
    with contextlib.closing(sqlite3.connect(tmp_path / "relay.db")) as db:
        db.execute("UPDATE events SET body = x'7b'")
        db.commit()
    page = await visitor.see("/sinks/ruled/try?seq=1")
    assert page.by_id("problem").text == (
        "The stored body of event 1 is damaged, so it is not tried."
    )


async def test_a_body_that_no_form_holds_is_left_out_of_the_box(
    relay: Relay, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "BOX_MAX", 10)
    await send(relay, body("a"))
    page = await visitor.see("/sinks/ruled/try?seq=1")
    assert page.by_id("body").text == ""
    assert page.by_id("verdict-title").text == "ruled does not take this event"


async def test_a_message_of_many_parts_is_shown_part_by_part(visitor: Visitor) -> None:
    page = await paste(visitor, body("a", name="Ada").decode(), sink="chat")
    assert "Blocks" in [each.text for each in page.all("h3")]
    assert orjson.loads(page.all("pre")[0].raw_text)


async def test_a_hostile_body_stays_as_it_is_in_its_field(visitor: Visitor) -> None:
    text = orjson.dumps({"id": "a", "event": "<b>x</b>", "data": {"name": HOSTILE}}).decode()
    page = await paste(visitor, text)
    assert page.by_id("body").text == text
    assert "[U+202E]" in page.all("pre")[0].text
