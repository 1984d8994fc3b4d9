"""The browser of these tests, and a relay whose week is shared by those that change little."""

from collections.abc import AsyncIterator

import pytest

from tests.admin.page.browser import Browser, Login, Window, launched
from tests.admin.page.browser.day import played
from tests.admin.page.browser.entering import login_of
from tests.service import Relay


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


@pytest.fixture(scope="package")
async def week(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Relay]:
    """A relay after its week; playing it takes seconds."""
    async with played(tmp_path_factory.mktemp("week")) as relay:
        yield relay


@pytest.fixture(scope="package")
async def week_login(week: Relay) -> Login:
    """The admin's."""
    return await login_of(week)


@pytest.fixture
async def login(relay: Relay) -> Login:
    return await login_of(relay)
