"""What people do on the page, each with JavaScript and without, by the same clicks."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Download, Page, expect

from tests import service
from tests.admin.page.browser import TIMEOUT_MS, Browser, Login, Window
from tests.admin.page.browser.entering import log_in, login_of
from tests.admin.page.test_absences import be_away
from tests.admin.page.visiting import ADMIN, VIEWER_TOKEN
from tests.admin.test_api import body, send
from tests.caller import post
from tests.service import Relay
from tests.sinks.far_end import FarEnd, Reply, Request, until


def answer(request: Request) -> Reply:
    return Reply(422, b"no such field") if request.target == "/leads" else Reply()


@pytest.fixture
async def far_end() -> AsyncIterator[FarEnd]:
    async with FarEnd() as far_end:
        far_end.reply = answer
        yield far_end


@pytest.fixture
async def relay(tmp_path: Path, far_end: FarEnd) -> AsyncIterator[Relay]:
    """A relay whose sink `leads` refuses everything."""
    async with service.serving(service.read(tmp_path, tables=ADMIN, far_end=far_end)) as relay:
        yield relay


@pytest.fixture
async def login(relay: Relay) -> Login:
    return await login_of(relay)


@pytest.fixture(params=[True, False], ids=["script", "no-script"])
def script(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def window(browser: Browser, login: Login, script: bool) -> AsyncIterator[Window]:
    async with browser.open(script=script, login=login) as window:
        yield window


@pytest.fixture
async def tab(window: Window) -> Page:
    return await window.tab()


@pytest.fixture
async def week_tab(browser: Browser, week_login: Login, script: bool) -> AsyncIterator[Page]:
    """A tab for journeys that change nothing, on a relay with much to see."""
    async with browser.open(script=script, login=week_login) as window:
        yield await window.tab()


async def press(tab: Page, name: str) -> None:
    await tab.get_by_role("button", name=name, exact=True).click()


async def follow(tab: Page, name: str) -> None:
    await tab.get_by_role("link", name=name, exact=True).first.click()


async def see_heading(tab: Page, text: str | re.Pattern[str]) -> None:
    await expect(tab.get_by_role("heading", level=1)).to_have_text(text)


async def see_notice(tab: Page, text: str) -> None:
    await expect(tab.locator("#notice")).to_contain_text(text)


async def see_path(tab: Page, path: str) -> None:
    """Wait for a path and query; that of a notice is left out."""
    await expect(tab).to_have_url(re.compile(re.escape(path) + r"([?&]done=[\w-]+)?$"))


async def until_settled(tab: Page, text: str | re.Pattern[str]) -> None:
    """Look again until a background job says something."""
    heading = tab.get_by_role("heading", level=1)
    again = tab.get_by_role("link", name="Look again")
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while re.search(text, shown := await heading.inner_text()) is None:
            assert re.match("Counting|Starting|Discarding|Replay|Discard", shown), shown
            if await again.is_visible():
                await again.click()


async def download(tab: Page, click: str, role: str = "link") -> Download:
    async with tab.expect_download() as waiting:
        if role == "button":
            await press(tab, click)
        else:
            await follow(tab, click)
    return await waiting.value


async def text_of(file: Download) -> str:
    return Path(await file.path()).read_text(encoding="utf-8")


async def lead(relay: Relay, **data: object) -> str:
    """Send a lead that becomes a dead letter of `leads`; returns its id."""
    name = f"lead-{relay.stored() + 1}"
    deliveries = "relay_deliveries_total"
    before = await relay.counts(deliveries)
    await send(relay, body(name, "lead.captured", **data))
    for labels in (("dead", "leads"), ("delivered", "all")):
        await relay.until_counted(deliveries, *labels, value=before.get(labels, 0) + 1)
    return name


async def test_somebody_logs_in_where_a_link_led_and_logs_out(
    browser: Browser, relay: Relay, login: Login, *, script: bool
) -> None:
    async with browser.open(script=script, login=Login(login.origin, ())) as window:
        window.allow("401")
        tab = await window.tab("/events?kind=lead.*")
        await log_in(tab, token="wrong")
        await expect(tab.get_by_role("alert")).to_have_text("That token is not right.")
        await log_in(tab)
        await see_path(tab, "/events?kind=lead.*")
        await see_heading(tab, "Events")
        await press(tab, "Log out")
        await see_path(tab, "/login")
        await tab.goto("/sinks")
        await see_path(tab, "/login?next=%2Fsinks")


async def find(tab: Page, text: str) -> None:
    await tab.get_by_role("searchbox").fill(text)
    await tab.get_by_role("searchbox").press("Enter")


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


async def test_one_event_is_replayed_to_one_sink(tab: Page, relay: Relay, far_end: FarEnd) -> None:
    name = await lead(relay)
    await tab.goto("/")
    await find(tab, name)
    await follow(tab, "Replay to all…")
    await press(tab, "Count them all")
    await until_settled(tab, "Replay 1 delivery")
    before = len(far_end.requests)
    await press(tab, "Replay 1")
    await see_heading(tab, re.compile(r"Replay \d+"))
    await until(lambda: len(far_end.requests) == before + 1, what="the replay")
    assert far_end.requests[-1].target == "/all"


async def test_everything_that_a_filter_matches_is_replayed_until_somebody_cancels(
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


async def test_a_sink_is_tested_paused_retried_and_resumed(
    tab: Page, relay: Relay, far_end: FarEnd
) -> None:
    await tab.goto("/sinks")
    await press(tab, "Test all")
    await see_notice(tab, "all can be reached")
    far_end.reply = lambda request: Reply(503) if request.target == "/all" else answer(request)
    before = len(far_end.requests)
    await send(relay, body("retried", "video.ready"))
    await until(lambda: len(far_end.requests) > before, what="a failed attempt")
    await tab.goto("/sinks")
    before = len(far_end.requests)
    await press(tab, "Retry now all")
    await see_notice(tab, "all is tried now")
    await until(lambda: len(far_end.requests) > before, what="another attempt")
    far_end.reply = answer
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


async def test_a_person_is_looked_up_exported_and_erased(tab: Page, relay: Relay) -> None:
    email = "ann@example.com"
    name = await lead(relay, email=email)
    await tab.goto("/people")
    await tab.get_by_label("E-mail address").fill(email.upper())
    await press(tab, "Look up")
    await see_heading(tab, re.compile(email, re.IGNORECASE))
    assert email not in tab.url.lower()
    assert name in await text_of(await download(tab, "Export as JSON", "button"))
    await tab.get_by_label("type the address again").fill(email)
    await press(tab, "Erase")
    await see_heading(tab, re.compile(r"Erasure \d+"))
    await expect(tab.locator("main")).to_contain_text("What was removed")
    await tab.goto("/events")
    assert email not in await tab.content()


async def test_the_audience_of_other_days_is_chosen_and_taken_along(week_tab: Page) -> None:
    tab = week_tab
    await tab.goto("/audience")
    await follow(tab, "7 days")
    await see_path(tab, "/audience?period=7d")
    viewers = await tab.locator("#figures dd").first.inner_text()
    assert int(viewers) > 0
    file = await download(tab, "CSV of videos")
    assert file.suggested_filename == "videos.csv"
    assert "vid_0be3a10c77f0" in await text_of(file)
    await tab.get_by_label("From").fill("2020-01-01")
    await tab.get_by_label("To", exact=True).fill("2020-01-02")
    await press(tab, "Filter")
    await expect(tab.locator("#empty")).to_contain_text("No views and no leads here")


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


async def test_a_viewer_sees_no_personal_data_and_no_button_that_changes_something(
    browser: Browser, relay: Relay, *, script: bool
) -> None:
    email = "hidden@example.com"
    await lead(relay, email=email, name="Hidden Person")
    viewer = await login_of(relay, token=VIEWER_TOKEN)
    async with browser.open(script=script, login=viewer) as window:
        window.allow("403")
        tab = await window.tab()
        for path in ("/", "/events", "/events/1", "/dead-letters", "/sinks", "/sinks/all"):
            await tab.goto(path)
            content = await tab.content()
            assert email not in content
            assert "Hidden Person" not in content
            changing = tab.locator("main form[method=post]")
            assert await changing.count() == 0, path
        for path in ("/people", "/sinks/all/try?seq=0", "/events/1/body"):
            await tab.goto(path)
            await expect(tab.locator("main")).to_contain_text("hidden from viewers")
        await find(tab, email)
        await see_notice(tab, "Viewers cannot search by address")
