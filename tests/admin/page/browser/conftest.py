"""The browser of these tests."""

from collections.abc import AsyncIterator

import pytest

from tests.admin.page.browser import Browser, Window, launched


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all of them.

    A session's would hold the event loop, and tests elsewhere on this worker bring their own.
    """
    async with launched() as browser:
        yield browser


@pytest.fixture
async def window(browser: Browser) -> AsyncIterator[Window]:
    """A window with scripts on, in the light theme, 1280 px wide."""
    async with browser.open() as window:
        yield window
