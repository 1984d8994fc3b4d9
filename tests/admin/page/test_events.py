"""The list of events on a running relay, and the search field of the bar."""

import csv
import io
import shlex
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from relay.admin.page import visit
from relay.admin.page.views.events import section as view
from tests.admin.page.document import Element
from tests.admin.page.visiting import (
    ADA,
    HOSTILE,
    REORDERING,
    VIEWER_TOKEN,
    Start,
    Visitor,
    visiting,
)
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer


def ids(page: Element) -> list[str]:
    return [row[2] for row in page.rows()]


def query(answer: httpx.Response) -> dict[str, list[str]]:
    return parse_qs(urlsplit(answer.headers["location"]).query)


def token_of(page: Element) -> str:
    return page.form("/find").fields()["form_token"]


async def find(visitor: Visitor, text: str) -> str:
    """The URL that the search field leads to."""
    fields = {"form_token": token_of(await visitor.see("/events")), "text": text}
    answer = await visitor.post("/find", fields)
    assert answer.status_code == 303
    return str(answer.headers["location"])


async def test_events_are_listed_newest_first_with_what_became_of_them(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
    await send(relay, body("a"), body("b", "video.ready"))
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    await relay.until_counted("relay_deliveries_total", "delivered", "all", value=2)
    page = await visitor.see("/events")
    assert [(row[0], row[2], row[4]) for row in page.rows()] == [
        ("video.ready", "b", "all delivered"),
        ("lead.captured", "a", "leads dead all delivered"),
    ]
    assert page.by_id("count").text == "2 events"
    assert page.links()["lead.captured"] == "/events/1"
    assert page.by_id("rows")["data-hold"] == "auto"


async def test_every_field_filters_and_has_a_chip_that_drops_it(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
    video = {"id": "vid_1"}
    await send(relay, body("evt_1", email=ADA, video=video), body("evt_2", "video.ready"))
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    person = relay.service._store.audience.person(ADA)
    for name, value in {
        "kind": "lead.*",
        "sink": "leads",
        "outcome": "dead",
        "reason": "422",
        "id": "evt_1",
        "exact_id": "evt_1",
        "video": "vid_1",
        "person": person,
        "words": "VID_1 evt",
    }.items():
        page = await visitor.see(str(httpx.URL("/events", params={"source": "main", name: value})))
        assert ids(page) == ["evt_1"], name
        assert page.by_id("count").text == "1 event matches"
        chips = page.by_id("chips").all("a", class_="chip")
        assert {chip["href"] for chip in chips} >= {"/events?source=main"}
        assert len(chips) == 2
    since = await visitor.see("/events?since=1h&until=2000-01-01T00:00%2B02:00")
    assert since.by_id("none").text == "No stored event matches this filter."
    assert "--until 1999-12-31T22:00:00.000Z" in since.text


async def test_pages_follow_one_another_and_a_later_page_takes_no_new_rows(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, *(body(f"e{number:02}") for number in range(52)))
    first = await visitor.see("/events?kind=lead.captured")
    assert (len(first.rows()), first.by_id("count").text) == (50, "52 events match")
    second = await visitor.see(first.links()["Older"])
    assert ids(second) == ["e01", "e00"]
    assert second.by_id("rows")["data-hold"] == "always"
    assert second.by_id("count").text == "52 events match"
    assert second.links()["Newest"] == "/events?kind=lead.captured"
    assert "Older" not in second.links()


async def test_a_search_whose_time_runs_out_says_how_far_it_got_and_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "BUDGET_MS", 0)
    monkeypatch.setattr("relay.store.search.STEP_ROWS", 2)
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, body("needle"), *(body(f"e{number}") for number in range(5)))
        page = await visitor.see("/events?words=needle")
        assert page.by_id("none").text.startswith("Nothing matches among the events since 20")
        assert page.by_id("count").text.startswith("at least 0, looked back to 20")
        assert page.links()["Count for longer"] == "/events?words=needle&count=long"
        counted = await visitor.see(page.links()["Count for longer"])
        assert counted.by_id("count").text == "1 event matches"
        steps = 0
        while not page.rows():
            page, steps = await visitor.see(page.links()["Search older"]), steps + 1
        assert (ids(page), steps) == (["needle"], 2)


async def test_a_fault_of_the_filter_is_said_beside_its_form(visitor: Visitor) -> None:
    page = await visitor.see("/events?since=yesterday&sink=all")
    assert page.by_id("fault").text.startswith("From: expected a time in UTC")
    assert [
        each["name"]
        for each in page.all("input")
        if each.attributes.get("value") == "yesterday" and each.attributes.get("autocomplete")
    ] == ["since"]
    assert "Unknown sink nobody" in (await visitor.see("/events?sink=nobody")).by_id("fault").text
    address = await visitor.see("/events?words=ada@example.com")
    assert "no address belongs" in address.by_id("fault").text
    for bad in ("outcome=lost", "before=x", "person=ada", "nonsense=1", "count=2"):
        page = await visitor.see(f"/events?{bad}", status=400)
        assert page.all("h1")[0].text == "Bad Request"


async def test_an_address_becomes_the_stores_digest_and_keeps_the_other_filters(
    relay: Relay, visitor: Visitor
) -> None:
    await send(relay, body("a", email=ADA), body("b", email="bob@example.com"))
    page = await visitor.see("/events?kind=lead.*")
    fields = page.form("/events/person").fields() | {"address": " ADA@example.com "}
    answer = await visitor.post("/events/person", fields)
    assert query(answer)["kind"] == ["lead.*"]
    assert "example" not in answer.headers["location"]
    found = await visitor.see(answer.headers["location"])
    assert ids(found) == ["a"]
    assert found.form("/events").fields()["person"] == query(answer)["person"][0]


async def test_the_bar_finds_by_id_address_video_or_words(relay: Relay, visitor: Visitor) -> None:
    await send(
        relay,
        body("evt_abc1", email=ADA, company="Northwind"),
        body("evt_abd1", "video.ready", id="vid_7"),
    )
    assert await find(visitor, "evt_abc1") == "/events/1"
    assert await find(visitor, " evt_abd ") == "/events/2"
    assert await find(visitor, "evt_ab") == "/events?id=evt_ab"
    assert await find(visitor, "vid_7") == "/events?video=vid_7"
    assert await find(visitor, "northwind") == "/events?words=northwind"
    by_address = await find(visitor, "Ada <ADA@example.com>")
    assert ids(await visitor.see(by_address)) == ["evt_abc1"]
    assert await find(visitor, "") == "/events"
    nothing = await visitor.see(await find(visitor, "nowhere"))
    assert nothing.by_id("notice").text == (
        "Nothing found for “nowhere”, tried as the beginning of an id, the id of a video, "
        "words in a body."
    )
    nobody = await find(visitor, "bob@example.com")
    assert "bob" not in nobody
    assert (await visitor.see(nobody)).by_id("notice").text == "No stored event is of this person."
    long = await visitor.see(await find(visitor, "x" * 400))
    assert "too long" in long.by_id("notice").text


async def test_a_viewer_sees_no_personal_data_and_may_not_search_by_it(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as viewer:
        await send(relay, body(f"evt-{ADA}", email=ADA), body("v", "video.ready", id="vid_1"))
        page = await viewer.see("/events")
        assert ADA not in viewer.html
        assert ids(page)[1] == "(address hidden)"
        assert not {"Replay all that match…", "Discard dead ones…"} & page.links().keys()
        names = {each.attributes.get("name") for each in page.all("input")}
        assert not names & {"words", "address", "person"}
        for field in ("id", "exact_id", "reason", "kind", "video"):
            await viewer.see(f"/events?{field}=ada@", status=403)
            assert (await viewer.client.get(f"/events.csv?{field}=ada%2540")).status_code == 403
        await viewer.see("/events?words=x", status=403)
        await viewer.see(f"/events?person={relay.service._store.audience.person(ADA)}", status=403)
        await viewer.see("/events/replay", status=403)
        assert (await viewer.client.get("/events.csv?words=x")).status_code == 403
        assert ADA not in (await viewer.client.get("/events.csv")).text
        assert await find(viewer, "vid_1") == "/events?video=vid_1"
        for text in (ADA, ADA.replace("@", "%40"), ADA.partition("@")[0] + "@"):
            refused = await viewer.see(await find(viewer, text))
            assert refused.by_id("notice").text == "Viewers cannot search by address."
        nothing = await viewer.see(await find(viewer, "nowhere"))
        assert "words in a body" not in nothing.by_id("notice").text
        fields = {"form_token": token_of(page), "address": ADA}
        assert "person" not in query(await viewer.post("/events/person", fields))


async def test_a_viewer_cannot_spell_out_an_address_by_the_filters(relay: Relay) -> None:
    async with visiting(relay, token=VIEWER_TOKEN) as viewer:
        hidden = body(f"evt-{ADA}", f"lead.of-{ADA}", email=ADA)
        await send(relay, hidden, body("evt-2", "video.ready", id="vid_1"))
        for glob in ("lead.of-*", "*of*", "lead.??-*", "lead.[o]*", "l*"):
            for path in ("/events", "/events.csv", "/dead-letters", "/dead-letters.csv"):
                answer = await viewer.client.get(path, params={"kind": glob})
                assert answer.status_code == 403, (path, glob)
        for kind, expected in (("lead.*", 1), ("video.*", 1), ("*", 2), ("video.ready", 1)):
            assert len(ids(await viewer.see(f"/events?kind={kind}"))) == expected, kind
        for beginning, expected in (("evt-a", 0), ("evt-", 0), ("evt-2", 1)):
            assert len(ids(await viewer.see(f"/events?id={beginning}"))) == expected
        assert await find(viewer, "evt-2") == "/events/2"
        assert (
            (await viewer.see(await find(viewer, "evt-a")))
            .by_id("notice")
            .text.startswith("Nothing found")
        )


async def test_text_of_strangers_is_never_markup(start: Start, destination: StubServer) -> None:
    destination.reply = lambda _: Reply(422, REORDERING.encode())
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, body(HOSTILE, f"lead.captured{HOSTILE}"))
        await relay.until_counted("relay_deliveries_total", "dead", "all")
        for path in ("/events", "/events/replay", "/events/discard"):
            page = await visitor.see(path)
            assert (len(page.all("script")), page.all("img")) == (1, []), path
            assert page.all("td", class_="mono")[0]["title"] == HOSTILE
        for name in ("kind", "source", "sink", "since", "id", "video", "words", "reason"):
            url = httpx.URL("/events", params={name: REORDERING[-40:]})
            page = await visitor.see(str(url))
            assert (len(page.all("script")), page.all("img")) == (1, []), name
            assert "[U+202E]" in page.by_id("chips").text
        found = await visitor.see(await find(visitor, REORDERING))
        assert found.by_id("notice").text.startswith(f"Nothing found for “{HOSTILE}")
        assert not found.all("img")


async def test_the_file_has_the_same_events_and_no_formulas(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    await send(relay, body("=1+1"), body("b", "video.ready"))
    await relay.until_counted("relay_deliveries_total", "delivered", "leads")
    await relay.until_counted("relay_deliveries_total", "delivered", "all", value=2)
    page = await visitor.see("/events?kind=lead.*")
    answer = await visitor.client.get(page.links()["CSV"])
    head, row = csv.reader(io.StringIO(answer.text))
    assert head[1:4] == ["source", "kind", "id"]
    assert (row[1:4], row[6]) == (
        ["main", "lead.captured", "'=1+1"],
        "all delivered; leads delivered",
    )


async def test_the_file_holds_all_that_the_filter_matches(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PAGE_MAX", 2)
    monkeypatch.setattr(view, "PART_MS", 0)
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, *(body(f"e{number}") for number in range(5)), body("x", "video.ready"))
        answer = await visitor.client.get("/events.csv?kind=lead.*")
        heads, *rows = csv.reader(io.StringIO(answer.text))
        assert [row[heads.index("id")] for row in rows] == ["e4", "e3", "e2", "e1", "e0"]
        answer = await visitor.client.get("/events.csv?kind=lead.*&before=3")
        assert [row[3] for row in csv.reader(io.StringIO(answer.text))] == ["id", "e1", "e0"]
        assert not (await visitor.client.get("/events.csv?id=nowhere")).text.splitlines()[1:]


async def test_a_file_ends_when_its_login_does(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "PAGE_MAX", 1)
    async with start() as relay, visiting(relay) as visitor:
        await send(relay, *(body(f"e{number}") for number in range(200)))
        jar = visitor.client.cookies.jar
        (cookie,) = (each for each in jar if not each.name.endswith("-known"))
        async with visitor.client.stream("GET", "/events.csv") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await relay.service._store.sessions.close(bytes.fromhex(cookie.value or ""))
            rest = [line async for line in lines]
        assert len(rest) < 200
        assert rest[-1].startswith("The rest is missing; load the file again.")
        assert rest[-1].endswith("The login has ended.")


async def test_an_empty_relay_says_how_to_send_the_first_event(visitor: Visitor) -> None:
    page = await visitor.see("/events")
    assert "relay send lead.captured --config" in page.by_id("none").text
    assert "/webhooks" in page.by_id("none").text


async def test_the_shown_request_of_the_api_gives_the_same_events(start: Start) -> None:
    async with start() as relay, visiting(relay) as visitor, operating(relay) as operator:
        await send(relay, body("a b"), body("c"))
        page = await visitor.see("/events?id=a+b&kind=lead.*")
        (curl,) = (each.text for each in page.all("code") if each.text.startswith("curl"))
        target = "/" + shlex.split(curl)[2].split("/", 3)[3]
        answer = await operator.client.get(target)
        assert [each["id"] for each in answer.json()["events"]] == ["a b"]
        assert "relay events list --id-prefix 'a b' --event 'lead.*'" in page.text
        assert "--id=-x" in (await visitor.see("/events?exact_id=-x")).text


async def test_a_held_list_shows_its_rows_wherever_they_are_now_and_counts_what_is_newer(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    await send(relay, body("a"), body("b"))
    assert (await visitor.see("/events")).by_id("rows")["data-range"] == "2-0"
    await send(relay, *(body(f"e{number}") for number in range(130)))
    visitor.client.headers["Relay-Held"] = "rows=2-0"
    held = await visitor.see("/events")
    assert [row[2] for row in held.rows()] == ["b", "a"]
    assert held.by_id("rows")["data-range"] == "2-0"
    assert held.by_id("rows")["data-newer"] == "130"
    assert "Rows stay in place" in held.by_id("as-of-rows").text
    filtered = await visitor.see("/events?kind=lead.captured")
    assert int(filtered.by_id("rows")["data-newer"]) >= 130
    assert (await visitor.see("/events?kind=video.ready")).by_id("rows")["data-newer"] == "0"
