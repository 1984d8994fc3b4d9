"""Fixtures shared by the tests of the operator's page."""

from collections.abc import AsyncIterator

import pytest

from tests import selection
from tests.admin.page.browser import Browser, Window, launched


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The only Chromium of this worker."""
    async with launched() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser, request: pytest.FixtureRequest) -> Browser:
    """Open windows, for a test in a module named `test_browser_*`: one worker runs them all."""
    assert selection.scope(request.node.nodeid) == "browser"
    return chromium


@pytest.fixture
async def window(browser: Browser) -> AsyncIterator[Window]:
    """A window with scripts on, in the light theme, 1280 px wide."""
    async with browser.open() as window:
        yield window
