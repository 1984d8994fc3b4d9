"""What strangers send is text on every view: no script runs, nothing is reported or overflows."""

import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

import pytest
from playwright.async_api import Page
from starlette.requests import Request as PageRequest
from starlette.responses import Response

from relay.admin.page.access.headers import SECURITY_HEADERS
from tests import service
from tests.admin.page.browser import Browser, Login, assert_no_overflow
from tests.admin.page.browser.entering import login_of
from tests.admin.page.browser.served import serving
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body, send
from tests.caller import post
from tests.service import Relay
from tests.stub_server import Reply, Request, StubServer

HOSTILE: Mapping[str, str] = {
    "script": "<script>window.pwned=1</script>",
    "attribute": "\"'><img src=x onerror=window.pwned=1>",
    "url": "javascript:window.pwned=1",
    "template": "{{7*7}}{% raw %}${7*7}",
    "direction": "\u202egpj.exe\u2066 \u200f\u061c",
    "controls": "\x00\x07\x1b[31m\x7f\r\n",
    "long": "W" * 10_000,
    "file name": f"{'Q3_campaign-final' * 5}.mp4",
    "marks": "e" + "\u0301\u0337" * 120,
    "end of a field": "</textarea></pre></title><svg onload=window.pwned=1>",
    "style": "</style>}*{display:none}\\3c script\\3e url(//evil.test/x)",
    "formula": '=HYPERLINK("//evil.test","x")',
    "surrogate": "\U0001f469\u200d\U0001f469\u200d\U0001f466 \ufffe \u2028",
}

EMAIL = "ann@example.com"


class Reports:
    """Listens to a browser's reports of violated policies."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def take(self, request: PageRequest) -> Response:
        self.received.append(await request.body())
        return Response(status_code=204)


@pytest.fixture(scope="module")
async def reports() -> AsyncIterator[Reports]:
    """A listener that the policy of every page names."""
    reports = Reports()
    with pytest.MonkeyPatch.context() as patch:
        async with serving({"/reports": reports.take}) as served:
            name = "Content-Security-Policy"
            policy = f"{SECURITY_HEADERS[name]}; report-uri {served.url('/reports')}"
            headers = {**SECURITY_HEADERS, name: policy}
            patch.setattr("relay.admin.page.access.headers.SECURITY_HEADERS", headers)
            yield reports


def answer(request: Request) -> Reply:
    """Refuse with what the sender sent."""
    is_refused = request.target == "/leads" and b"taken-" not in request.body
    return Reply(422, request.body[:2000]) if is_refused else Reply()


@pytest.fixture(scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory, reports: Reports) -> AsyncIterator[Relay]:
    """A relay that has every hostile text in every field."""
    folder = tmp_path_factory.mktemp("hostile")
    async with StubServer() as destination:
        destination.reply = answer
        settings = service.read(folder, tables=ADMIN, destination=destination)
        async with service.serving(settings) as relay:
            dead = 0
            for taken, (name, text) in enumerate(HOSTILE.items(), 1):
                dead += await send_everywhere(relay, name, text)
                await relay.until_counted("relay_deliveries_total", "dead", "leads", value=dead)
                # The fifth refusal with no success between them would park the sink.
                await send(relay, body(f"taken-{name}", "lead.captured"))
                await relay.until_counted(
                    "relay_deliveries_total", "delivered", "leads", value=taken
                )
            yield relay


async def send_everywhere(relay: Relay, name: str, text: str) -> int:
    """Send leads and a view with a text in every field, and a request without an event.

    Returns how many leads there are.
    """
    in_header = ("User-Agent", re.sub(rb"[\x00-\x1f\x7f]", b"", text.encode())[:2000])
    data = {
        "id": text,
        "email": EMAIL,
        "name": text,
        "fields": {text: text, "more": [text, {text: None}]},
        "video": {"id": text, "title": text},
        "url": text,
    }
    lead = body(name, "lead.captured", **data)
    assert (await relay.ask(post(lead, in_header))).status == 202
    viewer = {"email": f"{text}@example.com", "name": text}
    watched = {"video": data["video"], "viewer": viewer, "milestone": "started", "progress": text}
    await send(relay, body(f"{name}-watched", "video.watched", **watched))
    for unsure in (body(f"{name}-kind", text), text.encode()):
        assert (await relay.ask(post(unsure, in_header))).status in (200, 202)
    status = (await relay.ask(post(body(text), in_header))).status
    assert status in (200, 202)
    return 1 + (status == 202)


@pytest.fixture(scope="module")
async def login(relay: Relay) -> Login:
    return await login_of(relay)


@pytest.fixture
async def tab(browser: Browser, login: Login, reports: Reports) -> AsyncIterator[Page]:
    """A narrow tab, in which overflow is easiest; dialogs and reports fail the test."""
    dialogs: list[str] = []

    async def on_dialog(dialog: object) -> None:
        dialogs.append(str(dialog))

    async with browser.open(login=login, width=390) as window:
        window.allow("status of 4")
        tab = await window.tab()
        tab.on("dialog", on_dialog)
        yield tab
    assert not dialogs
    assert not reports.received


async def assert_harmless(tab: Page) -> None:
    assert await tab.evaluate("window.pwned") is None
    await tab.locator("h1").wait_for()
    await assert_no_overflow(tab)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/events", "/dead-letters", "/unreadable", "/sinks", "/sinks/leads", "/audience"),
        *("/changes", "/config", "/events/replay?kind=lead.captured", "/events/discard?sink=leads"),
    ],
)
async def test_a_view_shows_hostile_texts_as_texts(tab: Page, path: str) -> None:
    await tab.goto(path)
    await assert_harmless(tab)
    for width in (320, 768, 1024, 1280):
        await tab.set_viewport_size({"width": width, "height": 900})
        await assert_no_overflow(tab)


@pytest.mark.parametrize("form", ["pretty", "raw", "as:leads"])
async def test_an_event_shows_hostile_texts_as_texts(tab: Page, form: str) -> None:
    await tab.goto("/events")
    links = tab.locator("#rows [data-row] a")
    for path in await links.evaluate_all("(links) => links.map((each) => each.pathname)"):
        await tab.goto(f"{path}?body={form}" if form != "pretty" else path)
        await assert_harmless(tab)


async def test_an_unreadable_request_shows_hostile_texts_as_texts(tab: Page) -> None:
    await tab.goto("/unreadable")
    links = tab.locator("[data-row] a")
    for url in await links.evaluate_all("(links) => links.map((each) => each.href)"):
        await tab.goto(url)
        await assert_harmless(tab)


async def test_a_person_shows_hostile_texts_as_texts(tab: Page) -> None:
    await tab.goto("/people")
    await tab.get_by_label("E-mail address").fill(EMAIL)
    await tab.get_by_role("button", name="Look up").click()
    await tab.get_by_role("heading", name=EMAIL).wait_for()
    await assert_harmless(tab)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_search_phrase_is_shown_as_text(tab: Page, name: str) -> None:
    text = HOSTILE[name]
    await tab.goto("/events")
    await tab.get_by_role("searchbox").fill(text[:320])
    await tab.get_by_role("searchbox").press("Enter")
    await assert_harmless(tab)
    query = quote(text.replace("\x00", "")[:300])
    for field in ("words", "video", "kind", "since", "body", "before"):
        await tab.goto(f"/events?{field}={query}")
        await assert_harmless(tab)
    await tab.goto(f"/audience?video={query}")
    await assert_harmless(tab)
    await tab.goto("/sinks/leads")
    await tab.get_by_label("Raw body of an event").fill(text)
    await tab.get_by_role("button", name="Try it").click()
    await tab.get_by_role("heading", name="Try an event on leads").wait_for()
    await assert_harmless(tab)
