"""One sink on the page of a running relay."""

import re
from pathlib import Path

from relay.config import Config
from tests import service
from tests.admin.page.document import Element
from tests.admin.page.visiting import ADA, ADMIN, VIEWER_TOKEN, Visitor, visiting
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

RULED = """
[[sink]]
name = "ruled"
type = "http"
url = "{url}"
events = ["lead.captured", "video.*"]
sources = ["main"]
when = "data.email != '{ada}'"
ordered = "viewer"
headers = {{ "X-Key" = "a-secret-key" }}
signing_secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
"""


def read(folder: Path, destination: StubServer, tables: str = "") -> Config:
    return service.read(folder, tables=ADMIN + tables, destination=destination)


def ruled(destination: StubServer) -> str:
    return RULED.format(url=destination.url("/ruled/a-secret-path"), ada=ADA)


def pairs(page: Element) -> dict[str, str]:
    """Settings that are shown."""
    return {
        name.text: value.text
        for each in page.all("dl", class_="pairs")
        for name, value in zip(each.all("dt"), each.all("dd"), strict=True)
    }


async def test_an_idle_sink_has_its_state_its_route_and_no_figures(visitor: Visitor) -> None:
    page = await visitor.see("/sinks/leads")
    assert page.all("h1")[0].text == "leads"
    assert page.by_id("state").text.startswith("active since")
    assert page.by_id("route").text.startswith("Takes lead.captured from every source.")
    assert "Nothing was sent in this time." in visitor.html
    assert [each.text for each in page.all("a") if "aria-current" in each.attributes] == [
        "Sinks",
        "Day",
    ]
    page = await visitor.see("/sinks/all")
    assert page.by_id("route").text.startswith("Takes every event from every source.")
    page = await visitor.see("/sinks/tests")
    assert page.by_id("route").text == "Takes webhook.test from every source."


async def test_a_route_is_shown_in_words_and_settings_without_secrets(
    tmp_path: Path, destination: StubServer
) -> None:
    settings = read(tmp_path, destination, ruled(destination))
    async with service.serving(settings) as relay, visiting(relay) as visitor:
        page = await visitor.see("/sinks/ruled")
        assert page.by_id("route").text.startswith(
            "Takes lead.captured and video.* from main when data.email != 'ada@example.com', "
            "one after another for each viewer."
        )
        shown = pairs(page)
        assert shown["url"] == f"http://127.0.0.1:{destination.port}/…"
        assert (shown["headers"], shown["signing_secrets"]) == ("X-Key: set", "set")
        assert shown["timeout"] == "10 s"
        assert "a-secret" not in visitor.html
        assert "whsec" not in visitor.html


async def test_attempts_are_grouped_by_result_duration_and_reason(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: Reply(422 if b"bad" in request.body else 200)
    await send(relay, body("good-1"), body("good-2"), body("bad"))
    await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
    await relay.until_counted("relay_deliveries_total", "dead", "leads")
    for over in ("hour", "day", "week"):
        page = await visitor.see(f"/sinks/leads?over={over}")
        rows = {row[0]: row for row in page.rows()}
        assert (rows["delivered"][1], rows["dead"][1]) == ("2", "1")
        assert sum(int(cell) for cell in rows["delivered"][3:]) == 2
        assert rows["422: the destination refuses this event"][1] == "1"
    assert page.by_id("finding-1-title").text == "Sink leads has 1 dead letter"
    assert page.links()["look at them"] == "/dead-letters?sink=leads"
    await visitor.see("/sinks/leads?over=year", status=400)
    state = (await visitor.see("/sinks")).by_id("sink-leads").all("td")[1].text
    assert re.fullmatch(r"active ?last error (now|\d+ s ago): 422: the destination .*", state)
    state = (await visitor.see("/sinks")).by_id("sink-tests").all("td")[1].text
    assert state == "active"


async def test_a_refused_sink_says_why_and_its_buttons_work(
    destination: StubServer, relay: Relay, visitor: Visitor
) -> None:
    destination.reply = lambda request: Reply(401 if request.target == "/leads" else 200)
    await send(relay, body("a"))
    await relay.until_counted("relay_sink_state", "leads", "parked")
    page = await visitor.see("/sinks/leads")
    assert page.by_id("state").text.startswith("parked since")
    assert page.by_id("finding-1-title").text == "Sink leads is parked"
    assert "401: the destination does not know our credentials" in page.by_id("finding-1").text
    page = await visitor.submit(page.form("/sinks/leads/test"))
    assert page.by_id("notice").text.startswith("leads cannot take events: 401")
    page = await visitor.submit(page.form("/sinks/leads/retry"))
    assert page.by_id("notice").text in (
        "leads is tried now.",
        "leads is tried now, with 1 delivery that was due later.",
    )
    page = await visitor.submit(page.form("/sinks/leads/pause"))
    assert page.by_id("state").text.startswith("paused")
    assert "relay sinks resume leads" in visitor.html
    destination.reply = lambda _: Reply()
    page = await visitor.submit(page.form("/sinks/leads/resume"))
    await relay.until_counted("relay_deliveries_total", "delivered", "leads")
    async with operating(relay) as operator:
        rows = (await operator.get("/audit"))["changes"]
    assert [(row["operation"], row["target"], row["via"]) for row in rows] == [
        ("resume_sink", "leads", "page"),
        ("pause_sink", "leads", "page"),
        ("retry_sink", "leads", "page"),
    ]


async def test_a_sink_that_is_only_in_the_store_has_a_view(
    tmp_path: Path, destination: StubServer
) -> None:
    destination.reply = lambda request: Reply(401 if request.target == "/leads" else 200)
    async with service.serving(read(tmp_path, destination)) as relay:
        await send(relay, body("a"))
        await relay.until_counted("relay_sink_state", "leads", "parked")
    async with (
        service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
        visiting(relay) as visitor,
    ):
        page = await visitor.see("/sinks/leads")
        assert page.by_id("state").text == "not configured"
        assert page.by_id("route").text.startswith("This sink is not in the config")
        assert page.by_id("vitals").all("dd")[0].text == "1"
        assert "relay events list --sink leads --outcome pending" in visitor.html
        assert not [
            each for each in page.all("form") if "/sinks/" in (each.attributes.get("action") or "")
        ]
        page = await visitor.see("/sinks/all")
        assert page.by_id("vitals").all("dd")[0].text == "0"
        await visitor.see("/sinks/leads/try", status=404)
        page = await visitor.see("/sinks/nobody", status=404)
        assert "Unknown sink nobody" in page.text


async def test_a_viewer_sees_settings_and_figures_without_addresses_or_buttons(
    tmp_path: Path, destination: StubServer
) -> None:
    settings = read(tmp_path, destination, ruled(destination))
    async with (
        service.serving(settings) as relay,
        visiting(relay, token=VIEWER_TOKEN) as visitor,
    ):
        await send(relay, body("a", email=ADA))
        await until(lambda: len(destination.requests) >= 2, what="the deliveries")
        page = await visitor.see("/sinks/ruled")
        assert "when data.email != '(address hidden)'" in page.by_id("route").text
        assert pairs(page)["timeout"] == "10 s"
        assert ADA not in visitor.html
        actions = {each.attributes.get("action") for each in page.all("form")}
        assert actions == {"/find", "/logout", None}
        await visitor.see("/sinks/ruled/try", status=403)
        await visitor.see("/sinks/ruled/try?seq=0", status=403)
        fields = {
            "form_token": page.form("/logout").fields()["form_token"],
            "source": "main",
            "body": body("a").decode(),
        }
        assert (await visitor.post("/sinks/ruled/try", fields)).status_code == 403
