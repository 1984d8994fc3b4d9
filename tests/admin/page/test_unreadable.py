"""Unreadable requests on the page of a running relay."""

import pytest

from relay.admin.page.views.dead_letters import unreadable as view
from tests.admin.page.visiting import VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body
from tests.admin.test_unreadable import keep
from tests.caller import post
from tests.operator import operating
from tests.service import Relay

HOSTILE = b"<script>alert(1)</script>\"'><img src=x>\xff\x00\xe2\x80\xaegpj"


async def send(relay: Relay, *bodies: bytes) -> None:
    for each in bodies:
        assert (await relay.ask(post(each, ("X-Trace", "<b>ada</b>")))).status == 200


async def only_link(visitor: Visitor) -> str:
    (href,) = (
        each["href"]
        for each in (await visitor.see("/unreadable")).all("a")
        if each["href"].startswith("/unreadable/")
    )
    return href


async def test_requests_are_listed_by_reason_and_one_by_one(relay: Relay, visitor: Visitor) -> None:
    await send(relay, b"x", b"y", b"{}")
    for path in ("/dead-letters", "/unreadable"):
        rows = (await visitor.see(path)).rows()
        reasons = [row[:3] for row in rows[:2]]
        assert reasons == [
            ["main", "the body is not JSON", "2"],
            ["main", "id is not a text of 1 to 255 printable characters", "1"],
        ]
        assert [row[4] for row in rows[2:]] == ["2 B", "1 B", "1 B"]


async def test_one_request_is_shown_with_its_headers_and_body(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, b'{"id": 7}')
    page = await visitor.see(await only_link(visitor))
    assert page.all("h1")[0].text == (
        "Unreadable: id is not a text of 1 to 255 printable characters"
    )
    assert page.all("pre")[0].text == '{"id": 7}'
    headers = [each.text for each in page.all("dl", class_="pairs")[0].all("dd")]
    assert "<b>ada</b>" in headers
    assert "relay unreadable show" in visitor.html
    await visitor.see("/unreadable/0000", status=404)
    await visitor.see("/unreadable/xyz", status=400)


async def test_a_body_of_any_bytes_is_text_and_its_rest_is_left_out(
    relay: Relay, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(relay, HOSTILE)
    url = await only_link(visitor)
    page = await visitor.see(url)
    assert page.all("pre")[0].text == (
        "<script>alert(1)</script>\"'><img src=x>\\xff[U+0000][U+202E]gpj"
    )
    assert len(page.all("script")) == 1
    assert not page.all("img")
    monkeypatch.setattr(view, "SHOWN_MAX", 8)
    page = await visitor.see(url)
    assert page.all("pre")[0].text == "<script>"
    assert "its beginning" in visitor.html


async def test_a_request_is_discarded_once_the_word_is_typed(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, b"x")
    url = await only_link(visitor)
    form = next(
        each
        for each in (await visitor.see(url)).all("form")
        if each.attributes.get("action", "").endswith("/discard")  # type: ignore[union-attr]
    )
    assert form.fields()["word"] == ""
    for word in ("", "delete"):
        answer = await visitor.post(form["action"], {**form.fields(), "word": word})
        page = await visitor.see(answer.headers["location"])
        assert page.by_id("notice").text == "Nothing was discarded: type discard to confirm."
    answer = await visitor.post(form["action"], {**form.fields(), "word": "Discard "})
    page = await visitor.see(answer.headers["location"])
    assert "is discarded" in page.by_id("notice").text
    assert "There is no unreadable request." in visitor.html
    await visitor.see(url, status=404)
    async with operating(relay) as operator:
        (row,) = (await operator.get("/audit"))["changes"]
    assert (row["operation"], row["via"]) == ("discard_unreadable", "page")


async def test_requests_are_retried_one_by_one_and_all_that_match(
    relay: Relay, visitor: Visitor
) -> None:
    first, _ = await keep(relay, body("a")), await keep(relay, body("b"))
    await send(relay, b"[]")
    (href,) = (
        each["href"]
        for each in (await visitor.see("/unreadable")).all("a")
        if each["href"].startswith(f"/unreadable/{first}")
    )
    form = (await visitor.see(href)).form(f"{href.partition('?')[0]}/retry")
    answer = await visitor.post(form["action"], form.fields())
    page = await visitor.see(answer.headers["location"])
    assert page.by_id("notice").text == "1 accepted."
    form = page.form("/unreadable/retry")
    page = await visitor.see(
        (await visitor.post(form["action"], form.fields())).headers["location"]
    )
    assert page.by_id("notice").text == (
        "1 accepted; 1 kept, because there is still no usable event."
    )
    assert [row[4] for row in page.rows()[1:]] == ["2 B"]


async def test_all_that_match_are_discarded_once_the_word_is_typed(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, b"x", b"y", b"[]")
    path = "/unreadable?reason=the+body+is+not+JSON&until=2100-01-01"
    form = (await visitor.see(path)).form("/unreadable/discard")
    fields = {**form.fields(), "word": "no"}
    await visitor.post("/unreadable/discard", fields)
    assert len((await visitor.see(path)).rows()) == 3
    answer = await visitor.post("/unreadable/discard", {**fields, "word": "discard"})
    page = await visitor.see(answer.headers["location"])
    assert page.by_id("notice").text == "2 discarded."
    page = await visitor.see("/unreadable")
    assert [row[1:3] for row in page.rows()[:1]] == [["the body is not a JSON object", "1"]]
    await visitor.see("/unreadable?reason=nothing")
    assert "No request matches this filter." in visitor.html


async def test_pages_follow_one_another(relay: Relay, visitor: Visitor) -> None:
    await send(relay, b"1", b"2", b"3")
    page = await visitor.see("/unreadable?limit=2")
    assert len([row for row in page.rows() if len(row) == 5 and "B" in row[4]]) == 2
    page = await visitor.see(page.links()["Older"])
    assert page.links()["Newest"] == "/unreadable?limit=2"
    await visitor.see("/unreadable?before=1")
    assert "There is nothing older." in visitor.html


async def test_a_viewer_sees_that_there_are_some_but_not_what_is_in_them(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as visitor:
        await send(relay, b"of ada@example.com")
        page = await visitor.see("/unreadable")
        assert page.rows()[0][:3] == ["main", "the body is not JSON", "1"]
        assert not [each for each in page.links().values() if each.startswith("/unreadable/")]
        async with operating(relay) as operator:
            (request,) = (await operator.get("/unreadable"))["unreadable"]
        await visitor.see(f"/unreadable/{request['id']}", status=403)
        token = page.form("/logout").fields()["form_token"]
        fields = {"form_token": token, "source": "main", "word": "discard"}
        answer = await visitor.post(f"/unreadable/{request['id']}/discard", fields)
        assert answer.status_code == 403
        assert relay.stored("unreadable") == 1
