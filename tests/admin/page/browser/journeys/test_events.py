"""Events are found, filtered, replayed, tried again and discarded."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from relay.delivery import replayer
from tests.admin.page.browser.journeys.steps import (
    answer,
    find,
    follow,
    lead,
    press,
    see_heading,
    see_notice,
    see_path,
    until_settled,
)
from tests.admin.test_api import body, send
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until


async def test_an_event_is_found_by_its_id_its_address_its_video_and_its_words(
    tab: Page, relay: Relay
) -> None:
    email, video, title = "ann@example.com", "vid_1", "Fahrräder ölen"
    name = await lead(relay, email=email, video={"id": video, "title": title})
    await tab.goto("/")
    await find(tab, name)
    await expect(tab.locator("h1")).to_contain_text(f"lead.captured of {email}")
    await find(tab, email)
    await expect(tab).to_have_url(re.compile(r"/events\?person=[0-9a-f]{16}$"))
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
    await find(tab, video)
    await see_path(tab, f"/events?video={video}")
    await find(tab, title)
    await expect(tab.locator("#chips")).to_contain_text(title)
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
    await find(tab, "nobody@example.com")
    await see_notice(tab, "No stored event is of this person.")


async def test_events_are_filtered_and_a_chip_is_dropped(week_tab: Page) -> None:
    tab = week_tab
    await tab.goto("/events")
    await tab.get_by_label("Kind").fill("lead.captured")
    await tab.get_by_label("Sink").select_option("newsletter")
    await tab.get_by_label("Outcome").select_option("pending")
    await press(tab, "Filter")
    await expect(tab.locator("#chips")).to_contain_text("pending")
    await expect(tab.locator("#rows .kind").first).to_have_text("lead.captured")
    some = await tab.locator("#count b").inner_text()
    await tab.locator("#chips a", has_text="newsletter").click()
    await expect(tab.locator("#chips")).not_to_contain_text("newsletter")
    assert await tab.get_by_label("Outcome").input_value() == "pending"
    assert await tab.get_by_label("Sink").input_value() == ""
    more = await tab.locator("#count b").inner_text()
    assert int(more) >= int(some) > 0
    await follow(tab, "Drop all")
    await expect(tab.locator("#chips")).to_have_count(0)


async def test_lists_go_back_in_time_and_return(week_tab: Page) -> None:
    tab = week_tab
    await tab.goto("/events")
    newest = await tab.locator("#rows [data-row]").first.get_attribute("id")
    await follow(tab, "Older")
    await expect(tab).to_have_url(re.compile(r"/events\?before=\d+"))
    await expect(tab.locator("#rows [data-row]").first).not_to_have_id(newest or "")
    await follow(tab, "Newest")
    await expect(tab.locator("#rows [data-row]").first).to_have_id(newest or "")
    await tab.go_back()
    await expect(tab.locator("#rows [data-row]").first).not_to_have_id(newest or "")


async def test_one_event_is_replayed_to_one_sink(
    tab: Page, relay: Relay, destination: StubServer
) -> None:
    name = await lead(relay)
    await tab.goto("/")
    await find(tab, name)
    await follow(tab, "Replay to all…")
    await press(tab, "Count them all")
    await until_settled(tab, "Replay 1 delivery")
    before = len(destination.requests)
    await press(tab, "Replay 1")
    await see_heading(tab, re.compile(r"Replay \d+"))
    await until(lambda: len(destination.requests) == before + 1, what="the replay")
    assert destination.requests[-1].target == "/all"


async def test_everything_that_a_filter_matches_is_replayed_until_it_is_cancelled(
    tab: Page, relay: Relay
) -> None:
    video = "vid_1"
    for _ in range(3):
        await lead(relay, video={"id": video})
    await tab.goto("/sinks/all")
    await press(tab, "Pause all")
    await see_notice(tab, "all is paused")
    await tab.goto(f"/events?sink=all&video={video}")
    await follow(tab, "Replay all that match…")
    await expect(tab.locator("#sample [data-row]")).to_have_count(3)
    await press(tab, "Count them all")
    await until_settled(tab, r"Replay 3 deliveries\?")
    await press(tab, "Replay 3")
    await see_heading(tab, re.compile(r"Replay \d+"))
    await expect(tab.locator("#figures")).to_contain_text(re.compile(r"Counted at the start\s*3"))
    await expect(tab.locator("#progress")).to_have_attribute("value", "0")
    await press(tab, "Cancel this replay")
    await expect(tab.locator(".facts")).to_contain_text("cancelled")
    await tab.goto("/sinks/all")
    await press(tab, "Resume all")
    await see_notice(tab, "all delivers again")


async def test_a_count_is_stopped(tab: Page, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        await lead(relay)
    monkeypatch.setattr(replayer, "STEP_EVENTS", 1)
    replays = relay.service._store.replays
    choose = replays.choose

    async def hang(*given: Any, after: int, **more: Any) -> Any:
        if after:
            await asyncio.Event().wait()
        return await choose(*given, after=after, **more)

    monkeypatch.setattr(replays, "choose", hang)
    await tab.goto("/events/replay?outcome=dead")
    await press(tab, "Count them all")
    await until_settled(tab, "Counting")
    await press(tab, "Stop")
    await until_settled(tab, "Stopped")
    await expect(tab.locator("#job")).to_contain_text("Nothing was changed.")


async def test_a_pending_delivery_is_retried_and_discarded(
    tab: Page, relay: Relay, destination: StubServer
) -> None:
    destination.reply = lambda request: (
        Reply(503) if request.target == "/leads" else answer(request)
    )
    await send(relay, body("waits"))
    await relay.until_counted("relay_attempts_total", "retry", "leads")
    await tab.goto("/events/1")
    before = len(destination.requests)
    await press(tab, "Retry now to leads")
    await see_notice(tab, "leads is tried now")
    await until(lambda: len(destination.requests) > before, what="another attempt")
    await tab.goto("/events/1")
    await press(tab, "Discard the delivery to leads")
    await see_notice(tab, "The delivery to leads is discarded")
    await expect(tab.locator("#deliveries")).to_contain_text("leads discarded")


async def test_events_of_a_person_are_filtered_without_the_address_in_the_url(
    tab: Page, relay: Relay
) -> None:
    email = "ann@example.com"
    await lead(relay, email=email)
    await lead(relay, email="bob@example.com")
    await tab.goto("/events?kind=lead.*")
    await tab.get_by_text("More filters").click()
    await tab.get_by_label("Person").fill(email)
    await press(tab, "Filter by person")
    await expect(tab).to_have_url(re.compile(r"/events\?kind=lead\.%2A&person=[0-9a-f]{16}$"))
    await expect(tab.locator("#rows [data-row]")).to_have_count(1)
