"""Every view of a week of a relay: accessible, within its width, and without a fault."""

import pytest

from tests.admin.page.browser import Browser, Login, assert_accessible, assert_no_overflow
from tests.admin.page.browser.views import VIEWS

WIDTHS = (320, 390, 1280, 2560)

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
