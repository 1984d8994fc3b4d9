"""What the tests' own browser finds: a page's fault fails the test that opened it."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tests.admin.page.browser import Browser, assert_accessible, assert_no_overflow, set_hidden
from tests.admin.page.browser.served import Served, serving

STRICT = "default-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
GOOD = """<!doctype html><html lang="en"><title>Good</title><link rel="icon" href="data:,">
<main><h1>Good</h1><p>{more}</p></main></html>"""


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async def page(request: Request) -> Response:
        headers = {"Content-Security-Policy": STRICT + "; img-src data:"}
        return HTMLResponse(GOOD.format(more=request.query_params.get("more", "")), 200, headers)

    async with serving({"/": page}) as served:
        yield served


async def test_a_good_page_has_no_fault(browser: Browser, served: Served) -> None:
    async with browser.open() as window:
        page = await window.tab(served.url("/?more=words"))
        await assert_accessible(page)
        await assert_no_overflow(page)


@pytest.mark.parametrize("script", [True, False])
async def test_an_inline_style_is_a_fault(
    browser: Browser, served: Served, *, script: bool
) -> None:
    async with browser.open(script=script) as window:
        page = await window.tab(served.url("/?more=<b style='color:red'>red</b>"))
        await page.get_by_text("red").wait_for()
        assert any(each.startswith("CSP: style-src-attr") for each in window.faults)
        window.allow("style-src")
        window.allow("inline style")


async def test_an_error_on_the_console_fails_the_test_that_opened_the_page(
    browser: Browser, served: Served
) -> None:
    with pytest.raises(AssertionError, match="404"):
        async with browser.open() as window:
            await window.tab(served.url("/nowhere"))


async def test_a_picture_without_a_text_is_not_accessible(browser: Browser, served: Served) -> None:
    async with browser.open() as window:
        page = await window.tab(served.url("/?more=<img src='data:,'>"))
        with pytest.raises(AssertionError, match="image-alt"):
            await assert_accessible(page)


async def test_a_long_word_overflows(browser: Browser, served: Served) -> None:
    async with browser.open(width=320) as window:
        page = await window.tab(served.url("/?more=" + "w" * 200))
        with pytest.raises(AssertionError, match="px wide in 320"):
            await assert_no_overflow(page)


async def of(page: Page, query: str) -> object:
    return await page.evaluate(f"matchMedia('{query}').matches")


async def test_a_window_has_its_theme_and_a_hidden_tab_knows_it(
    browser: Browser, served: Served
) -> None:
    async with browser.open(theme="dark") as window:
        page = await window.tab(served.url("/"))
        assert await of(page, "(prefers-color-scheme: dark)")
        await set_hidden(page, hidden=True)
        assert await page.evaluate("document.hidden")
