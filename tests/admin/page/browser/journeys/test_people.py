"""People log in and out, look at the audience, and handle a person's data; viewers see less."""

import re

from playwright.async_api import Page, expect

from tests.admin.page.browser import Browser, Login
from tests.admin.page.browser.entering import log_in, login_of
from tests.admin.page.browser.journeys.steps import (
    download,
    find,
    follow,
    lead,
    press,
    see_heading,
    see_notice,
    see_path,
    text_of,
)
from tests.admin.page.visiting import VIEWER_TOKEN
from tests.service import Relay


async def test_a_login_returns_to_the_linked_page_and_a_logout_ends_it(
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
