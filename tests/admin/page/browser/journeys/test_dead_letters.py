"""Dead letters and unreadable requests are replayed and discarded."""

import re

from playwright.async_api import Page, expect

from tests.admin.page.browser.journeys.steps import (
    lead,
    press,
    see_notice,
    see_path,
    until_settled,
)
from tests.caller import post
from tests.service import Relay


async def test_a_group_of_dead_letters_is_discarded(tab: Page, relay: Relay) -> None:
    await lead(relay)
    await tab.goto("/dead-letters?sink=leads")
    await tab.get_by_role("link", name=re.compile("^Discard…")).click()
    await press(tab, "Count them all")
    await until_settled(tab, "Discard 1 dead letter")
    await press(tab, "Discard 1")
    await until_settled(tab, "discarded$")
    await tab.goto("/dead-letters")
    await expect(tab.locator("main")).to_contain_text("Nothing was given up")


async def test_discarding_every_dead_letter_is_confirmed_by_typing(tab: Page, relay: Relay) -> None:
    await lead(relay)
    await tab.goto("/events/discard")
    await press(tab, "Count them all")
    await until_settled(tab, "Discard 1 dead letter")
    await tab.get_by_label("to confirm").fill("no")
    await press(tab, "Discard 1")
    await see_notice(tab, "nothing was discarded")
    await tab.get_by_label("to confirm").fill("discard everything")
    await press(tab, "Discard 1")
    await until_settled(tab, "1 dead letter is discarded")


async def test_one_dead_letter_is_replayed_and_then_discarded(tab: Page, relay: Relay) -> None:
    name = await lead(relay)
    await tab.goto("/dead-letters")
    before = (await relay.counts("relay_deliveries_total"))["dead", "leads"]
    await press(tab, f"Replay {name} to leads")
    await see_notice(tab, f"{name} goes to leads again")
    await relay.until_counted("relay_deliveries_total", "dead", "leads", value=before + 1)
    await tab.goto("/dead-letters")
    await press(tab, f"Discard {name} to leads")
    await see_notice(tab, f"{name} to leads is discarded")


async def test_an_unreadable_request_is_discarded_by_typing(tab: Page, relay: Relay) -> None:
    content = b"no event"
    assert (await relay.ask(post(content))).status == 200
    await tab.goto("/unreadable")
    await tab.locator("[data-row] a").first.click()
    await expect(tab.locator("pre")).to_have_text(content.decode())
    await tab.get_by_label("to confirm").fill("discard")
    await press(tab, "Discard this request")
    await see_path(tab, "/unreadable")
    await see_notice(tab, "is discarded")
