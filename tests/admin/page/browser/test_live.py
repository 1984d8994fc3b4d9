"""Pages that are open while the relay works, restarts, and is used in another tab."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from relay import config
from tests import service
from tests.admin.page.browser import Browser, Login, Window, see_live
from tests.admin.page.browser.entering import log_in, login_of
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body, send
from tests.caller import post
from tests.operator import operating
from tests.ports import free_port
from tests.service import ENVIRON, Relay
from tests.stub_server import Reply, StubServer, until

EVENTS_S = 500
"""Events a second, for `LOAD_S` seconds at least."""

LOAD_S = 5
SENDERS = 4
LONGEST_TASK_MS = 1000
SHIFT = 0.01
"""Of a page over the whole load; 0.1 is said to be good."""

OBSERVE = """() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
        const durations = list.getEntries().map((each) => each.duration);
        window.longest = Math.max(window.longest, ...durations);
    }).observe({ type: "longtask" });
    window.shift = 0;
    new PerformanceObserver((list) => {
        for (const each of list.getEntries()) window.shift += each.value;
    }).observe({ type: "layout-shift" });
}"""


DOT = "(button) => getComputedStyle(button, '::before').backgroundColor"


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        yield destination


@pytest.fixture
def settings(tmp_path: Path, destination: StubServer) -> config.Config:
    """Of a relay whose page keeps its port over a restart."""
    service.read(tmp_path, tables=ADMIN, destination=destination)
    file = tmp_path / "config.toml"
    text = file.read_text(encoding="utf-8")
    listen = 'admin_listen = "127.0.0.1:'
    file.write_text(text.replace(f"{listen}0", f"{listen}{free_port()}"), encoding="utf-8")
    return config.load(file, ENVIRON)


@pytest.fixture
async def relay(settings: config.Config) -> AsyncIterator[Relay]:
    async with service.serving(settings) as relay:
        yield relay


@pytest.fixture
async def window(browser: Browser, login: Login) -> AsyncIterator[Window]:
    async with browser.open(login=login) as window:
        yield window


async def live(window: Window, path: str) -> Page:
    """Open a view, and wait for its stream."""
    tab = await window.tab(path)
    await see_live(tab)
    return tab


async def ready(relay: Relay, *names: str) -> None:
    await send(relay, *(body(name, "video.ready") for name in names))


async def test_an_event_appears_by_itself(window: Window, relay: Relay) -> None:
    events, now = await live(window, "/events?kind=video.*"), await live(window, "/")
    await expect(now.locator("#first-steps")).to_be_visible()
    await send(relay, body("other"), body("first", "video.ready"))
    await expect(events.locator("#rows")).to_contain_text("first")
    await expect(events.locator("#rows [data-row]")).to_have_count(1)
    await expect(events.locator("#count")).to_contain_text("1 event matches")
    await expect(now.locator("[id='kind-video.ready']")).to_be_visible()
    await expect(now.locator("#first-steps")).to_have_count(0)


async def test_a_list_under_the_pointer_waits_and_says_how_many_are_new(
    window: Window, relay: Relay
) -> None:
    await ready(relay, "first")
    tab = await live(window, "/events")
    await tab.locator("#event-1").hover()
    await ready(relay, "second", "third")
    more = tab.get_by_role("button", name="2 new")
    await expect(more).to_be_visible()
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
    await more.click()
    await expect(tab.locator("#rows [data-row]")).to_have_count(3)
    await expect(more).to_be_hidden()


async def test_a_delivery_that_dies_under_the_pointer_is_shown_as_dead_and_others_are_counted(
    window: Window, relay: Relay, destination: StubServer
) -> None:
    destination.reply = lambda _: Reply(503)
    await ready(relay, "first")
    tab = await live(window, "/events")
    row, rows = tab.locator("#event-1"), tab.locator("#rows [data-row]")
    await expect(row).to_contain_text("pending")
    await row.hover()
    destination.reply = lambda _: Reply(422)
    await expect(row).to_contain_text("dead")
    await expect(row).not_to_contain_text("pending")
    assert await row.evaluate("(row) => row.matches(':hover')")
    await expect(tab.locator("body")).to_have_attribute("data-state", "live")
    await ready(relay, "second")
    await expect(tab.get_by_role("button", name="1 new: show")).to_be_visible()
    await ready(relay, *(f"more-{number}" for number in range(129)))
    await expect(tab.get_by_role("button", name="About 130 new: show")).to_be_visible()
    assert await row.evaluate("(row) => row.matches(':hover')")
    await expect(rows).to_have_count(1)


async def test_a_paused_page_says_so_and_how_many_events_have_come(
    window: Window, relay: Relay
) -> None:
    await ready(relay, "first")
    tab = await live(window, "/events")
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
    state, standing = tab.locator("[data-live-state]"), tab.locator("[data-standing]")
    await state.click()
    await expect(state).to_have_text("Paused")
    await expect(tab.locator("body")).to_have_attribute("data-state", "paused")
    await expect(standing).to_contain_text("no event has come to this relay since")
    await ready(relay, "second", "third")
    await expect(standing).to_contain_text("2 events have come to this relay since")
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
    await state.click()
    await expect(tab.locator("#rows [data-row]")).to_have_count(3)
    await expect(standing).to_be_hidden()
    await expect(state).to_have_text("Live")


async def test_dead_letters_under_the_pointer_stay_where_they_are(
    browser: Browser, tmp_path: Path, destination: StubServer
) -> None:
    destination.reply = lambda request: Reply(int(request.body.split(b"status-")[1][:3]))
    settings = service.read(tmp_path, tables=ADMIN, destination=destination)
    async with service.serving(settings) as relay:
        await send(relay, body("status-422"))
        for sink in ("all", "leads"):
            await relay.until_counted("relay_dead_letters", sink)
        async with browser.open(login=await login_of(relay)) as window:
            tab = await live(window, "/dead-letters")
            discard = tab.get_by_role("button", name="Discard status-422 to leads")
            await discard.hover()
            await send(relay, body("status-400"))
            await expect(tab.get_by_role("button", name="2 new causes")).to_be_visible()
            assert await discard.evaluate("(button) => button.matches(':hover')")
            await tab.get_by_role("button", name="2 new dead letters").click()
            await expect(tab.locator("#letters [data-row]")).to_have_count(4)
            await expect(tab.locator("#causes [data-row]")).to_have_count(4)


async def test_a_change_in_one_tab_shows_in_the_other(window: Window) -> None:
    one, other = await live(window, "/sinks"), await live(window, "/sinks/leads")
    await one.get_by_role("button", name="Pause leads").click()
    await expect(one.locator("#notice")).to_contain_text("leads is paused")
    await expect(other.locator("#state")).to_contain_text("paused")
    await other.get_by_role("button", name="Resume leads").click()
    await expect(one.locator("#sink-leads")).to_contain_text("active")


async def test_a_session_that_ends_during_an_action_leads_to_the_login_and_back(
    window: Window, relay: Relay, login: Login
) -> None:
    window.allow("401")
    tab = await live(window, "/sinks")
    (cookie,) = (each for each in login.cookies if not each["name"].endswith("-known"))
    await relay.service._store.sessions.close(bytes.fromhex(cookie["value"]))
    await tab.get_by_role("button", name="Pause leads").click()
    state = tab.locator("[data-live-state]")
    await expect(state).to_have_text("Stopped: log in again")
    await state.click()
    await expect(tab).to_have_url(re.compile(r"/login\?next=%2Fsinks$"))
    await log_in(tab)
    await expect(tab).to_have_url(re.compile(r"/sinks$"))
    await expect(tab.locator("#sink-leads")).to_contain_text("active")


async def test_an_open_page_shows_a_restart_and_its_session_goes_on(
    browser: Browser, settings: config.Config
) -> None:
    async with AsyncExitStack() as windows:
        async with service.serving(settings) as relay:
            login = await login_of(relay)
            window = await windows.enter_async_context(browser.open(login=login))
            window.allow("ERR_|Failed to load resource")
            tab = await live(window, "/events")
        state = tab.locator("[data-live-state]")
        await expect(state).to_contain_text("Reconnecting since")
        async with service.serving(settings) as relay:
            await expect(state).to_contain_text("Live, relay restarted")
            await ready(relay, "after")
            await expect(tab.locator("#rows")).to_contain_text("after")
            await windows.aclose()


async def test_the_page_has_its_keyboard_shortcuts(window: Window, relay: Relay) -> None:
    await ready(relay, "first", "second")
    tab = await live(window, "/")
    await tab.keyboard.press("?")
    await expect(tab.locator("#keys")).to_be_visible()
    await tab.keyboard.press("Escape")
    await tab.keyboard.press("g")
    await tab.keyboard.press("e")
    await expect(tab).to_have_url(re.compile("/events$"))
    await see_live(tab)
    await tab.keyboard.press("/")
    await expect(tab.get_by_role("searchbox")).to_be_focused()
    await tab.get_by_role("searchbox").blur()
    for key in "jjk":
        await tab.keyboard.press(key)
    await expect(tab.locator("#event-2 a")).to_be_focused()
    await tab.keyboard.press("Enter")
    await expect(tab).to_have_url(re.compile("/events/2$"))


async def test_a_paused_page_stands_still(window: Window, relay: Relay) -> None:
    paused, other = await live(window, "/events"), await live(window, "/events")
    state = paused.locator("[data-live-state]")
    green = await state.evaluate(DOT)
    await state.click()
    await expect(state).to_have_text("Paused")
    assert await state.evaluate(DOT) != green
    await ready(relay, "first")
    await expect(other.locator("#rows")).to_contain_text("first")
    await expect(paused.locator("#none")).to_be_visible()
    await state.click()
    await expect(paused.locator("#rows")).to_contain_text("first")


async def send_until(relay: Relay, enough: asyncio.Event) -> None:
    """Send events at their times, for as long as the load lasts at least."""
    begun_s = time.monotonic()

    async def send_share(share: int) -> None:
        async with await relay.call() as caller:
            for number in count(share, SENDERS):
                if number >= EVENTS_S * LOAD_S and enough.is_set():
                    return
                await asyncio.sleep(begun_s + number / EVENTS_S - time.monotonic())
                kind = ("video.ready", "video.watched")[number // SENDERS % 2]
                assert (await caller.ask(post(body(f"e{number}", kind)))).status == 202

    await asyncio.gather(*map(send_share, range(SENDERS)))


async def test_a_busy_relay_leaves_the_page_responsive(window: Window, relay: Relay) -> None:
    async with operating(relay) as operator:
        # Deliveries would load this process, which also runs the destination.
        for sink in ("all", "leads", "tests"):
            await operator.post(f"/sinks/{sink}/pause")
    await send(relay, body("of-each", "video.ready"), body("kind", "video.watched"))
    now, events = await live(window, "/"), await live(window, "/events")
    for tab in (now, events):
        await tab.evaluate(OBSERVE)
    enough = asyncio.Event()
    load = asyncio.create_task(send_until(relay, enough))
    await until(lambda: relay.stored() > EVENTS_S, what="the load")
    await events.get_by_label("Kind").fill("video.ready")
    await events.get_by_role("button", name="Filter", exact=True).click()
    await expect(events.locator("#chips")).to_contain_text("video.ready")
    await expect(events.locator("#rows .kind").first).to_have_text("video.ready")
    enough.set()
    await load
    for tab in (now, events):
        assert await tab.evaluate("window.longest") < LONGEST_TASK_MS
        await see_live(tab)
    assert await now.evaluate("window.shift") < SHIFT
