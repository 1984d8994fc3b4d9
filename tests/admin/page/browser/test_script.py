"""The page's script in a real browser: what it keeps, holds, fetches and sends."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from playwright.async_api import Page, expect

from tests.admin.page.browser import Browser, Window, assert_accessible, see_live, set_hidden
from tests.admin.page.browser.fixture_page import FixturePage
from tests.admin.page.browser.served import Served, serving
from tests.stub_server import until


@dataclass(frozen=True)
class Open:
    """A page that is live, and what it shows."""

    tab: Page
    shown: FixturePage
    window: Window
    served: Served

    async def refreshed(self, *topics: str) -> None:
        """Change something that shows, and wait for it."""
        await self.shown.change(*topics)
        await expect(self.tab.locator("#count")).to_have_text(str(self.shown.counts))


@pytest.fixture
async def shown() -> FixturePage:
    return FixturePage()


@pytest.fixture
async def served(shown: FixturePage) -> AsyncIterator[Served]:
    """Set up before the window, because a page would report the end of its server."""
    async with serving(shown.handlers) as served:
        yield served
    assert shown.reports == []


@pytest.fixture
async def page(served: Served, window: Window, shown: FixturePage) -> Open:
    tab = await window.tab(served.url())
    await see_live(tab)
    await until(lambda: len(shown.fragments) == 1, what="the first refresh")
    return Open(tab, shown, window, served)


async def test_a_change_shows_in_place_and_keeps_what_belongs_to_the_person(page: Open) -> None:
    tab = page.tab
    await tab.get_by_label("Tick 2").check()
    await tab.get_by_text("More 1").click()
    await tab.get_by_label("Find").fill("typed")
    await tab.evaluate("getSelection().selectAllChildren(document.querySelector('#state-3'))")
    await tab.evaluate("window.kept = document.querySelector('#row-2')")
    page.shown.state = "pending"
    page.shown.token = "fresh"
    await page.refreshed()
    assert await tab.get_by_label("Tick 2").is_checked()
    assert await tab.locator("#more-1").get_attribute("open") is not None
    assert await tab.get_by_label("Find").input_value() == "typed"
    assert await tab.evaluate("getSelection().toString()") == "pending"
    assert await tab.evaluate("window.kept === document.querySelector('#row-2')")
    assert await tab.locator("[name=token]").input_value() == "fresh"


FILTER = """<form id="filter" data-filter><label>Id <input name="id"></label>
<label>Kind <input name="kind"></label></form>"""


@pytest.mark.parametrize("name", ["", ' id="filter"'])
async def test_typed_text_stays_in_a_form_with_a_field_named_id(page: Open, name: str) -> None:
    page.shown.main = FILTER.replace(' id="filter"', name)
    await page.refreshed()
    await page.tab.get_by_label("Kind").fill("typed")
    await page.refreshed()
    assert await page.tab.get_by_label("Kind").input_value() == "typed"


async def test_typed_text_stays_when_a_part_above_it_disappears(page: Open) -> None:
    form = '<form data-filter><label>Kind <input name="kind"></label></form>'
    page.shown.main = f'<p id="chips">chips</p>\n{form}\n'
    await page.refreshed()
    await page.tab.get_by_label("Kind").fill("typed")
    page.shown.main = f"{form}\n"
    await page.refreshed()
    assert await page.tab.locator("#chips").count() == 0
    assert await page.tab.get_by_label("Kind").input_value() == "typed"


async def test_the_focus_stays_on_a_row_that_moves(page: Open) -> None:
    await page.tab.locator("#rows").evaluate("(list) => list.removeAttribute('data-hold')")
    await page.tab.get_by_label("Tick 1").focus()
    page.shown.rows = [1, 3, 2]
    page.shown.hold = ""
    await page.refreshed()
    assert await page.tab.evaluate("document.activeElement.id") == "tick-1"


async def rows(tab: Page) -> list[str]:
    found: list[str] = await tab.locator("[data-row]").evaluate_all(
        "(rows) => rows.map((row) => row.id)"
    )
    return found


async def test_new_rows_come_by_themselves_and_old_ones_go(page: Open) -> None:
    page.shown.rows = [5, 4, 3]
    await page.refreshed()
    assert await rows(page.tab) == ["row-5", "row-4", "row-3"]
    assert await page.tab.locator("[data-held]").is_hidden()


HOLDS = {
    "pointer": "() => 0",
    "focus": "() => document.querySelector('#rows a').focus()",
    "tick": "() => (document.querySelector('#tick-2').checked = true)",
    "selection": "() => getSelection().selectAllChildren(document.querySelector('#state-2'))",
    "later page": "() => (document.querySelector('#rows').dataset.hold = 'always')",
}


@pytest.mark.parametrize("hold", HOLDS)
async def test_a_list_in_use_gets_no_new_rows_but_a_button(page: Open, hold: str) -> None:
    tab = page.tab
    await tab.evaluate(HOLDS[hold])
    if hold == "later page":
        page.shown.hold = "always"
    if hold == "pointer":
        await tab.locator("#row-2").hover()
    page.shown.rows = [5, 4, 3, 2]
    page.shown.state = "delivered" if hold != "selection" else "pending"
    await page.refreshed()
    assert await rows(tab) == ["row-3", "row-2", "row-1"]
    assert await tab.locator("#state-3").text_content() == page.shown.state
    assert page.shown.held[-1] == (None if hold == "later page" else "rows=3-0")
    if hold == "later page":
        page.shown.hold = ""
        await tab.evaluate("document.querySelector('#rows').dataset.hold = ''")
        await page.refreshed()
    else:
        await tab.get_by_role("button", name="2 new: show them").click()
    await expect(tab.locator("#row-5")).to_be_visible()
    assert await rows(tab) == ["row-5", "row-4", "row-3", "row-2"]
    assert await tab.locator("[data-held]").is_hidden()


async def test_a_busy_relay_is_asked_four_times_a_second_and_never_twice_at_once(
    page: Open,
) -> None:
    for _ in range(60):
        await page.shown.change()
        await page.tab.evaluate("new Promise((done) => setTimeout(done, 20))")
    await page.refreshed()
    times = page.shown.fetched_s[1:]
    assert len(times) >= 4
    # The clock of the server sees the requests a little closer together than the page sends them.
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gaps) / len(gaps) >= 0.24
    assert page.shown.most_at_once == 1


async def test_an_older_result_is_fetched_again_once_it_may_be_read_anew(page: Open) -> None:
    page.shown.again_ms = 2_000
    await page.refreshed()
    page.shown.state = "read anew"
    await expect(page.tab.locator("#state-1")).to_have_text("read anew")


async def test_a_change_of_another_topic_fetches_nothing(page: Open) -> None:
    await page.shown.change("config")
    before = len(page.shown.fragments)
    await page.refreshed("sinks")
    assert len(page.shown.fragments) == before + 1


async def test_the_page_goes_on_under_an_open_dialog(page: Open) -> None:
    await page.tab.keyboard.press("?")
    await page.refreshed()
    await expect(page.tab.locator("#keys")).to_be_visible()


async def test_a_hidden_tab_holds_no_stream_and_catches_up_on_return(page: Open) -> None:
    await set_hidden(page.tab, hidden=True)
    await until(lambda: page.shown.streams == 0, what="the end of the stream")
    await page.shown.change()
    await set_hidden(page.tab, hidden=False)
    await expect(page.tab.locator("#count")).to_have_text(str(page.shown.counts))
    await until(lambda: page.shown.streams == 1, what="the stream")


async def test_a_paused_page_stands_still_and_says_so(page: Open) -> None:
    state, strip = page.tab.locator("[data-live-state]"), page.tab.locator("[data-standing]")
    await state.click()
    await expect(state).to_have_text("Paused")
    await expect(strip).to_contain_text("Live is paused since ")
    await expect(strip).to_contain_text("no event has come to this relay since")
    page.shown.accepted += 704
    await page.shown.change()
    await expect(strip).to_contain_text("about 700 events have come to this relay since")
    assert await page.tab.locator("#count").text_content() == "0"
    await strip.get_by_role("button", name="Go on").click()
    await expect(state).to_have_text("Live")
    await expect(strip).to_be_hidden()
    await expect(page.tab.locator("#count")).to_have_text("1")


async def test_a_paused_page_shows_times_of_day_instead_of_ages_that_go_on(page: Open) -> None:
    page.shown.now_ms = 1_782_000_045_000
    page.shown.main = (
        '<time id="t" datetime="2026-06-21T00:00:04.500Z" data-relative>earlier</time>'
    )
    await page.refreshed()
    time = page.tab.locator("#t")
    await expect(time).to_contain_text(" ago")
    await page.tab.keyboard.press(".")
    await expect(time).to_have_text("00:00:04 UTC")
    await page.tab.keyboard.press(".")
    await expect(time).to_contain_text(" ago")


async def test_the_button_counts_what_came_and_not_what_fits_on_a_page(page: Open) -> None:
    await page.tab.locator("#row-2").hover()
    new = page.tab.locator("[data-held]")
    for newer, text in (
        (57, "57"),
        (240, "About 240"),
        (1043, "About 1,000"),
        (10_001, "Over 10,000"),
    ):
        page.shown.newer = newer
        await page.refreshed()
        await expect(new).to_have_text(f"{text} new: show them")
    page.shown.newer, page.shown.is_over = 100, True
    await page.refreshed()
    await expect(new).to_have_text("Over 100 new: show them")
    await expect(page.tab.locator("[data-held-said]")).to_have_text("New rows have come.")


async def test_a_held_row_that_left_the_list_says_so_in_its_place(page: Open) -> None:
    await page.tab.locator("#row-2").hover()
    page.shown.rows = [3, 1]
    await page.refreshed()
    assert await rows(page.tab) == ["row-3", "row-2", "row-1"]
    await expect(page.tab.locator("#row-2")).to_contain_text("not in this list any more")
    page.shown.rows = [3, 2, 1]
    await page.refreshed()
    await expect(page.tab.locator("#row-2")).not_to_contain_text("not in this list any more")


async def test_rows_that_are_not_in_use_any_more_make_way_by_themselves(page: Open) -> None:
    await page.tab.locator("#row-2").hover()
    page.shown.rows = [4, 3, 2, 1]
    await page.refreshed()
    assert await rows(page.tab) == ["row-3", "row-2", "row-1"]
    await page.tab.mouse.move(0, 0)
    await expect(page.tab.locator("#row-4")).to_be_visible()


async def test_the_key_v_shows_the_new_rows_and_goes_to_the_first(page: Open) -> None:
    await page.tab.locator("#row-2").hover()
    page.shown.rows = [4, 3, 2, 1]
    await page.refreshed()
    await page.tab.keyboard.press("v")
    await expect(page.tab.get_by_role("link", name="Event 4")).to_be_focused()


async def test_a_page_says_that_the_relay_restarted_and_comes_back_by_itself(
    window: Window, shown: FixturePage
) -> None:
    window.allow("ERR_|Failed to load resource")
    async with serving(shown.handlers) as served:
        tab = await window.tab(served.url())
        state = tab.locator("[data-live-state]")
        await expect(state).to_have_text("Live")
    await expect(state).to_contain_text("Reconnecting since")
    await expect(tab.locator("[data-standing]")).to_contain_text("The relay does not answer since")
    shown.started_ms += 60_000
    shown.counts = 7
    async with serving(shown.handlers, port=served.port):
        await expect(state).to_have_text("Live, relay restarted 15:07 UTC")
        await expect(tab.locator("#count")).to_have_text("7")


async def test_a_refresh_that_fails_leaves_the_page_and_is_tried_again(page: Open) -> None:
    page.window.allow("503")
    page.shown.failures = 1
    await page.shown.change()
    strip = page.tab.locator("[data-standing]")
    await expect(strip).to_contain_text("The relay answers with an error (503) since")
    await expect(strip).to_contain_text("what you see is of")
    assert page.shown.failures == 0
    await expect(page.tab.locator("#count")).to_have_text("1")
    await see_live(page.tab)
    await expect(strip).to_be_hidden()


@pytest.mark.parametrize("cut", ["refresh", "stream", "action"])
async def test_an_ended_session_is_distinguished_from_a_restart(page: Open, cut: str) -> None:
    page.window.allow("401")
    page.shown.is_logged_in = False
    if cut == "refresh":
        await page.shown.change()
    elif cut == "action":
        await page.tab.get_by_role("button", name="Pause crm").click()
    else:
        await set_hidden(page.tab, hidden=True)
        await set_hidden(page.tab, hidden=False)
    state = page.tab.locator("[data-live-state]")
    await expect(state).to_have_text("Stopped: log in again")
    await expect(page.tab.locator("[data-standing]")).to_contain_text("Your login has ended:")
    assert page.tab.url == page.served.url()
    assert page.shown.posts == []
    page.shown.is_logged_in = True
    await state.click()
    await expect(state).to_have_text("Live")


@pytest.mark.parametrize("script", [True, False])
async def test_a_filter_is_a_url_with_and_without_script(
    served: Served, browser: Browser, shown: FixturePage, *, script: bool
) -> None:
    async with browser.open(script=script) as window:
        tab = await window.tab(served.url())
        await tab.get_by_label("Find").fill("ready")
        await tab.get_by_role("button", name="Find").click()
        await tab.wait_for_url(served.url("/?q=ready"))
        assert any("q=ready" in each for each in shown.fragments) is script
        await tab.go_back()
        await expect(tab.get_by_label("Find")).to_have_value("")
        assert tab.url == served.url()


async def test_going_back_empties_the_field_that_has_the_focus(page: Open) -> None:
    find = page.tab.get_by_label("Find")
    await find.fill("ready")
    await find.press("Enter")
    await page.tab.wait_for_url(page.served.url("/?q=ready"))
    await expect(find).to_be_focused()
    await page.tab.go_back()
    await expect(find).to_have_value("")


async def test_an_empty_filter_leaves_no_trace_in_the_url(page: Open) -> None:
    await page.tab.get_by_label("Find").fill("ready")
    await page.tab.keyboard.press("Enter")
    await page.tab.wait_for_url(page.served.url("/?q=ready"))
    await page.tab.get_by_label("Find").fill("")
    await page.tab.keyboard.press("Enter")
    await page.tab.wait_for_url(page.served.url("/"))


@pytest.mark.parametrize("script", [True, False])
async def test_an_action_shows_its_result_with_and_without_script(
    served: Served, browser: Browser, shown: FixturePage, *, script: bool
) -> None:
    async with browser.open(script=script) as window:
        tab = await window.tab(served.url())
        await tab.get_by_role("button", name="Pause crm").click()
        await tab.wait_for_url(served.url("/?done=1"))
        await expect(tab.locator("#state-3")).to_have_text("paused")
        assert shown.posts == [{"token": "first", "do": "pause"}]
        await expect(tab.locator("[name=token]")).to_have_value("second")


async def test_a_refresh_leaves_the_notice_of_an_action_in_its_place(page: Open) -> None:
    await page.tab.get_by_role("button", name="Pause crm").click()
    first = page.tab.locator("#main > :first-child")
    await expect(first).to_have_text("crm is paused.")
    await page.refreshed()
    await expect(first).to_have_text("crm is paused.")
    await page.tab.get_by_role("button", name="Find").click()
    await page.tab.wait_for_url(page.served.url("/"))
    await expect(first).to_have_text("Events")


async def test_a_button_is_off_while_its_action_runs_and_keeps_the_focus(page: Open) -> None:
    page.shown.answer.clear()
    button = page.tab.get_by_role("button", name="Pause crm")
    await button.click()
    await expect(button).to_be_disabled()
    await page.shown.change()
    await until(lambda: len(page.shown.posts) == 1, what="the action")
    page.shown.answer.set()
    await expect(button).to_be_enabled()
    await expect(button).to_be_focused()
    assert len(page.shown.posts) == 1


async def test_a_change_of_any_topic_during_an_action_is_shown_after_it(page: Open) -> None:
    page.shown.answer.clear()
    await page.tab.get_by_role("button", name="Pause crm").click()
    await until(lambda: len(page.shown.posts) == 1, what="the action")
    before = len(page.shown.fragments)
    await page.shown.change("config")
    await page.tab.evaluate("new Promise((done) => setTimeout(done, 200))")
    page.shown.answer.set()
    await until(lambda: len(page.shown.fragments) == before + 2, what="a refresh of the new view")


async def test_keys_move_through_rows_views_and_search(page: Open) -> None:
    tab = page.tab
    await tab.keyboard.press("j")
    await expect(tab.get_by_role("link", name="Event 3")).to_be_focused()
    await tab.keyboard.press("j")
    await tab.keyboard.press("j")
    await tab.keyboard.press("k")
    await expect(tab.get_by_role("link", name="Event 2")).to_be_focused()
    await tab.keyboard.press("/")
    await expect(tab.get_by_label("Find")).to_be_focused()
    await tab.keyboard.type("go j/k?")
    assert await tab.get_by_label("Find").input_value() == "go j/k?"
    await tab.get_by_label("Find").blur()
    await tab.keyboard.press("j")
    await tab.keyboard.press("Enter")
    await tab.wait_for_url(page.served.url("/other?row=3"))
    await tab.keyboard.press("g")
    await tab.keyboard.press("n")
    await tab.wait_for_url(page.served.url("/"))


async def test_the_keys_can_be_switched_off_for_good(page: Open) -> None:
    tab = page.tab
    await tab.keyboard.press("?")
    await assert_accessible(tab)
    await tab.get_by_label("Keys off").check()
    await tab.keyboard.press("Escape")
    await tab.keyboard.press("/")
    await expect(tab.get_by_label("Find")).not_to_be_focused()
    await tab.reload()
    await tab.keyboard.press("/")
    await expect(tab.get_by_label("Find")).not_to_be_focused()


async def test_times_are_relative_by_the_servers_clock_and_local_in_the_title(
    served: Served, window: Window, shown: FixturePage
) -> None:
    shown.now_ms = 1_782_000_045_000
    at = "2026-06-21T00:00:04.500Z"
    shown.main = f'<p><time id="t" datetime="{at}" data-relative>earlier</time></p>'
    tab = await window.tab(served.url())
    await expect(tab.locator("#t")).to_have_text("40 s ago")
    title = "2026-06-21 00:00:04.500 UTC, 2026-06-21 02:00:04 here (Europe/Berlin)"
    await expect(tab.locator("#t")).to_have_attribute("title", title)


@pytest.mark.parametrize("clipboard", [True, False])
async def test_an_id_is_copied_by_one_click(
    served: Served, window: Window, shown: FixturePage, *, clipboard: bool
) -> None:
    shown.main = '<button type="button" data-copy="evt_1" hidden>Copy the id</button>'
    await window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = await window.tab(served.url())
    if not clipboard:
        await tab.evaluate("() => { navigator.clipboard.writeText = Promise.reject; }")
    await tab.get_by_role("button", name="Copy the id").click()
    await expect(tab.locator("[data-copied]")).to_be_visible()
    assert await tab.evaluate("navigator.clipboard.readText()") == "evt_1"


async def test_a_failed_action_says_so_and_can_be_tried_again(page: Open) -> None:
    page.window.allow("Failed to load resource|ERR_FAILED")
    await page.tab.route("**/act", lambda route: route.abort())
    await page.tab.get_by_role("button", name="Pause crm").click()
    await expect(page.tab.locator("[data-live-state]")).to_have_text("Not sent: no answer")
    await expect(page.tab.get_by_role("button", name="Pause crm")).to_be_enabled()
