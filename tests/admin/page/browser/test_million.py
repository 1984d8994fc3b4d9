"""The page over a store of a million events."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Locator, expect

from benchmarks import million
from tests import service
from tests.admin.page.browser import Browser, Login, see_live
from tests.admin.page.browser.entering import login_of
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body, send
from tests.service import SINK, Relay, store_file
from tests.stub_server import StubServer

EVENTS = 1_000_000
SINKS = ("crm", "archive")
"""Those that the store's deliveries name."""

VIEWS = {
    "/": "Sink crm has 20 dead letters",
    "/events": "Events",
    "/events?kind=lead.captured": "Events",
    "/events?sink=crm&outcome=dead": "Events",
    "/events?before=100000": "Events",
    f"/events/{EVENTS // 2}": "video.ready",
    "/dead-letters": "Dead letters",
    "/sinks": "Sinks",
    "/sinks/crm": "crm",
    "/people": "People",
    "/audience": "Audience",
    "/changes": "Changes",
    "/config": "Config",
}


@pytest.fixture(scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Relay]:
    folder = tmp_path_factory.mktemp("million")
    async with StubServer() as destination:
        sinks = [SINK.format(name=each, url=destination.url(f"/{each}"), more="") for each in SINKS]
        settings = service.read(folder, tables=ADMIN + "".join(sinks))
        await million.build(store_file(settings), EVENTS)
        async with service.serving(settings) as relay:
            yield relay


@pytest.fixture(scope="module")
async def login(relay: Relay) -> Login:
    return await login_of(relay)


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_every_view_opens(browser: Browser, login: Login, script: bool) -> None:
    async with browser.open(login=login, script=script) as window:
        tab = await window.tab()
        for path, title in VIEWS.items():
            answer = await tab.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            await expect(tab.get_by_role("heading", level=1)).to_contain_text(title)


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_a_search_ends_at_its_time_limit_says_so_and_goes_on(
    browser: Browser, login: Login, script: bool
) -> None:
    async with browser.open(login=login, script=script) as window:
        tab = await window.tab("/events?words=nowhere+else")
        said = tab.get_by_text("Older ones were not looked at")
        first = await times(said)
        await tab.get_by_role("link", name="Search older").click()
        await expect(tab).to_have_url(re.compile("before="))
        assert await times(said) < first


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_pages_of_a_filter_lead_back_to_its_oldest_event(
    browser: Browser, login: Login, script: bool
) -> None:
    async with browser.open(login=login, script=script) as window:
        tab = await window.tab("/events?kind=video.deleted")
        await expect(tab.locator("#rows [data-row]")).to_have_count(3)
        await tab.goto("/events?sink=crm&outcome=dead")
        # Ten that had waited for a month are given up at the start.
        await expect(tab.locator("#rows [data-row]")).to_have_count(20)
        await tab.goto("/events?before=60")
        await tab.get_by_role("link", name="Older").click()
        await expect(tab.locator("#event-1")).to_be_visible()


async def test_a_new_event_appears_by_itself_above_the_million(
    browser: Browser, relay: Relay, login: Login
) -> None:
    async with browser.open(login=login) as window:
        tab = await window.tab("/events")
        await see_live(tab)
        await send(relay, body("newest"))
        await expect(tab.locator(f"#event-{EVENTS + 1}")).to_contain_text("newest")


async def times(said: Locator) -> list[str]:
    """The times in a sentence, as they stand in the markup."""
    await expect(said).to_be_visible()
    return [await each.get_attribute("datetime") or "" for each in await said.locator("time").all()]
