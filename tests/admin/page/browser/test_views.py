"""Every view of a week of a relay: accessible, within its width, and without a fault."""

import re
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Request

from relay.admin.page.view import PageView
from relay.admin.page.views import SECTIONS
from tests.admin.page.browser import Browser, Login, assert_accessible, assert_no_overflow
from tests.admin.page.browser.views import VIEWS

WIDTHS = (320, 390, 768, 1024, 1280, 2560)

UNNAMED = """() => [...document.querySelectorAll("input, select, textarea, button")]
    .filter((each) => each.type !== "hidden" && each.checkVisibility() && !each.labels?.length
        && !each.ariaLabel && !each.textContent.trim() && each.ariaHidden !== "true")
    .map((each) => each.outerHTML)"""


@pytest.mark.parametrize("name", VIEWS)
async def test_a_view_is_accessible_and_fits_its_width(
    browser: Browser, week_login: Login, name: str
) -> None:
    async with browser.open(login=week_login) as window:
        if name.startswith("error"):
            window.allow("Failed to load resource")
        tab = await window.tab()
        await VIEWS[name](tab)
        assert await tab.locator("h1").count() == 1
        assert await tab.evaluate(UNNAMED) == []
        await assert_accessible(tab)
        await tab.emulate_media(color_scheme="dark")
        await assert_accessible(tab, rules="contrast")
        for width in WIDTHS:
            await tab.set_viewport_size({"width": width, "height": 900})
            await assert_no_overflow(tab)
            if width == 390:
                await assert_accessible(tab, rules="without contrast")


async def test_every_view_works_without_script_and_is_among_the_examples(
    browser: Browser, week_login: Login
) -> None:
    opened: set[tuple[str, str]] = set()

    def note(request: Request) -> None:
        if request.is_navigation_request():
            opened.add((request.method, urlsplit(request.url).path))

    async with browser.open(script=False, width=320, login=week_login) as window:
        window.allow("Failed to load resource")
        tab = await window.tab()
        tab.on("request", note)
        for name, open_view in VIEWS.items():
            await open_view(tab)
            assert await tab.locator("h1").count() == 1, name
            assert await tab.locator("main").inner_text(), name
            await assert_no_overflow(tab)
    routes = [route for section in SECTIONS for route in section.routes]
    for view in (route for route in routes if isinstance(route, PageView)):
        pattern = re.compile(re.sub("{[^}]*}", "[^/]+", view.path))
        assert any(each == view.method and pattern.fullmatch(path) for each, path in opened), (
            view.path
        )
