"""Sinks are tested and paused, the config is reloaded, secrets are rotated, and losses mended."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests import service
from tests.admin.page.browser import Browser
from tests.admin.page.browser.entering import login_of
from tests.admin.page.browser.journeys.steps import answer, follow, press, see_notice
from tests.admin.page.test_absences import be_away
from tests.admin.page.test_reconciliations import notice_absences
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body, send
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until


async def test_a_sink_is_tested_paused_retried_and_resumed(
    tab: Page, relay: Relay, destination: StubServer
) -> None:
    await tab.goto("/sinks")
    await press(tab, "Test all")
    await see_notice(tab, "all can be reached")
    destination.reply = lambda request: Reply(503) if request.target == "/all" else answer(request)
    before = len(destination.requests)
    await send(relay, body("retried", "video.ready"))
    await until(lambda: len(destination.requests) > before, what="a failed attempt")
    await tab.goto("/sinks")
    before = len(destination.requests)
    await press(tab, "Retry now all")
    await see_notice(tab, "all is tried now")
    await until(lambda: len(destination.requests) > before, what="another attempt")
    destination.reply = answer
    await press(tab, "Pause all")
    await see_notice(tab, "all is paused")
    await expect(tab.locator("#sink-all")).to_contain_text("paused")
    await press(tab, "Resume all")
    await see_notice(tab, "all delivers again")


async def test_a_pasted_event_is_tried_on_a_sink(tab: Page) -> None:
    await tab.goto("/sinks/leads")
    box = tab.get_by_label("Raw body of an event")
    await box.fill(body("evt_pasted", "video.ready").decode())
    await press(tab, "Try it")
    await expect(tab.locator("#verdict")).to_contain_text("leads does not take this event")
    await box.fill(body("evt_pasted", "lead.captured").decode())
    await press(tab, "Try it")
    await expect(tab.locator("#verdict")).to_contain_text("leads takes this event")
    await expect(tab.get_by_role("heading", name="What it would send")).to_be_visible()


async def test_the_config_is_reloaded(tab: Page) -> None:
    await tab.goto("/config")
    await press(tab, "Reload the config")
    await expect(tab.locator("#reload")).to_contain_text("in use as of its last reload")


async def test_a_rotation_is_begun_and_finished(tab: Page) -> None:
    await tab.goto("/config")
    await follow(tab, "Rotate the secret… of main")
    await tab.get_by_label("Keep them for").select_option("30")
    await press(tab, "Begin")
    await see_notice(tab, "Now change the secret")
    await press(tab, "Finish")
    await see_notice(tab, "The rotation of main is finished: 0 of 0 kept requests verified.")


async def test_a_loss_is_acknowledged(tab: Page, relay: Relay) -> None:
    await be_away(relay, hours=5)
    await tab.goto("/")
    await tab.locator("#absences").get_by_role("button").click()
    await see_notice(tab, "is acknowledged")
    await tab.goto("/")
    await expect(tab.locator("#absences")).to_have_count(0)
    await tab.goto("/changes")
    await expect(tab.locator("#rows tr").first).to_contain_text("Acknowledged absence")


@pytest.fixture
async def silent_api(tmp_path: Path) -> AsyncIterator[Relay]:
    """A relay that was away, and whose sender's API never answers."""
    async with StubServer() as destination:
        destination.reply = lambda _: None
        api = f'[source.api]\nbase_url = "{destination.url("")}"\nkey = "a-key-of-the-tests"\n'
        async with service.serving(service.read(tmp_path, tables=api + ADMIN)) as relay:
            await be_away(relay, hours=5)
            await notice_absences(relay)
            yield relay


async def test_a_reconciliation_is_tried_and_cancelled(
    browser: Browser, silent_api: Relay, *, script: bool
) -> None:
    async with browser.open(script=script, login=await login_of(silent_api)) as window:
        tab = await window.tab("/reconciliations")
        await press(tab, "Try a reconciliation of main")
        await see_notice(tab, "has begun, as a trial: it changes nothing.")
        await press(tab, "Cancel reconciliation 1")
        await see_notice(tab, "Reconciliation 1 ends")
