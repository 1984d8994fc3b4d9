"""A session that ends by the clock under an open page, while somebody does something."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from relay.core.minutes import HOUR_MS
from relay.store.sessions import AGE_MS, IDLE_MS
from tests import service
from tests.admin.page.browser import Browser, Login, Window, see_live, set_hidden
from tests.admin.page.browser.entering import log_in
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body
from tests.caller import post, signed
from tests.service import Relay, ShiftedClock
from tests.stub_server import Reply, StubServer

IDLE_S, AGE_S, HOUR_S = IDLE_MS // 1000, AGE_MS // 1000, HOUR_MS // 1000


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def relay(tmp_path: Path, clock: ShiftedClock) -> AsyncIterator[Relay]:
    """A relay whose sink `leads` refuses everything."""
    async with StubServer() as destination:
        destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
        settings = service.read(tmp_path, tables=ADMIN, destination=destination)
        async with service.serving(settings, clock=clock) as relay:
            yield relay


@pytest.fixture
async def window(browser: Browser, login: Login) -> AsyncIterator[Window]:
    async with browser.open(login=login) as window:
        window.allow("401")
        yield window


async def receive(relay: Relay, clock: ShiftedClock, name: str) -> None:
    """An event that is signed by the relay's clock."""
    lead = body(name)
    signature = ("Service-Signature", signed(lead, at_s=clock.now_ms() // 1000))
    assert (await relay.ask(post(lead, signature, sign=False))).status == 202


async def see_end(tab: Page) -> None:
    await expect(tab.locator("[data-live-state]")).to_have_text("Stopped: log in again")


async def log_in_again(tab: Page, path: str) -> None:
    await tab.locator("[data-live-state]").click()
    await expect(tab).to_have_url(re.compile(r"/login\?next="))
    await log_in(tab)
    await expect(tab).to_have_url(re.compile(re.escape(path) + r"(\?done=[\w-]+)?$"))


async def log_in_elsewhere(tab: Page) -> None:
    """Log in where the page leads to in another tab, and come back to what was typed."""
    async with tab.context.expect_page() as opened:
        await tab.locator("[data-live-state]").click()
    other = await opened.value
    await log_in(other)
    await other.close()
    await set_hidden(tab, hidden=True)
    await set_hidden(tab, hidden=False)


async def test_a_confirmation_that_comes_too_late_changes_nothing(
    window: Window, relay: Relay, clock: ShiftedClock
) -> None:
    await receive(relay, clock, "dead")
    await relay.until_counted("relay_dead_letters", "leads")
    tab = await window.tab("/events/discard")
    await tab.get_by_role("button", name="Count them all").click()
    await expect(tab.get_by_role("heading", level=1)).to_have_text(re.compile("^Discard 1 dead"))
    confirmation = tab.get_by_label("to confirm")
    await confirmation.fill("discard everything")
    clock.shift_s = IDLE_S + 1
    await tab.get_by_role("button", name="Discard 1").click()
    await see_end(tab)
    await expect(confirmation).to_have_value("discard everything")
    assert await relay.counts("relay_dead_letters") == {("leads",): 1}
    await log_in_elsewhere(tab)
    await expect(tab.get_by_role("heading", level=1)).to_have_text("This count is too old")
    assert await relay.counts("relay_dead_letters") == {("leads",): 1}


async def test_a_text_stays_in_its_form_through_a_login_in_another_tab(
    window: Window, relay: Relay, clock: ShiftedClock
) -> None:
    tab = await window.tab("/sinks/leads")
    pasted = tab.get_by_label("Raw body of an event")
    await pasted.fill("typed for a minute")
    clock.shift_s = IDLE_S + 1
    await tab.get_by_role("button", name="Try it").click()
    await see_end(tab)
    await log_in_elsewhere(tab)
    await see_live(tab)
    await expect(pasted).to_have_value("typed for a minute")
    await tab.get_by_role("button", name="Try it").click()
    await expect(tab.get_by_role("heading", level=1)).to_have_text("Try an event on leads")


async def test_without_script_an_action_after_the_end_leads_to_the_login(
    browser: Browser, login: Login, clock: ShiftedClock
) -> None:
    async with browser.open(script=False, login=login) as window:
        tab = await window.tab("/sinks")
        clock.shift_s = IDLE_S + 1
        await tab.get_by_role("button", name="Pause leads").click()
        await expect(tab).to_have_url(re.compile("/login$"))
        await log_in(tab)
        await tab.goto("/sinks")
        await expect(tab.locator("#sink-leads")).to_contain_text("active")
        await tab.get_by_role("button", name="Pause leads").click()
        await expect(tab.locator("#sink-leads")).to_contain_text("paused")


async def test_a_page_that_nobody_uses_stays_live_until_the_session_ends(
    window: Window, relay: Relay, clock: ShiftedClock
) -> None:
    tab = await window.tab("/events")
    await see_live(tab)
    await receive(relay, clock, "now")
    await expect(tab.locator("#rows")).to_contain_text("now")
    clock.shift_s = HOUR_S
    await receive(relay, clock, "an-hour-later")
    await expect(tab.locator("#rows")).to_contain_text("an-hour-later")
    await tab.get_by_label("Kind").fill("lead.*")
    clock.shift_s = IDLE_S + 60
    await receive(relay, clock, "too-late")
    await see_end(tab)
    await expect(tab.locator("#rows")).not_to_contain_text("too-late")
    await expect(tab.get_by_label("Kind")).to_have_value("lead.*")
    await log_in_elsewhere(tab)
    await expect(tab.locator("#rows")).to_contain_text("too-late")
    await expect(tab.get_by_label("Kind")).to_have_value("lead.*")


async def test_a_page_in_use_is_live_for_half_a_day_and_no_longer(
    window: Window, clock: ShiftedClock
) -> None:
    tab = await window.tab("/sinks")
    pause, resume = (
        tab.get_by_role("button", name=f"{each} leads") for each in ("Pause", "Resume")
    )
    for hour in range(1, AGE_S // HOUR_S):
        clock.shift_s = hour * HOUR_S
        await pause.click()
        await resume.click()
    await expect(pause).to_be_visible()
    clock.shift_s = AGE_S + 60
    await pause.click()
    await see_end(tab)
    await log_in_again(tab, "/sinks")
    await expect(tab.locator("#sink-leads")).to_contain_text("active")
