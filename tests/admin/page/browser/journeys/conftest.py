"""What journeys begin with: each is made with JavaScript and without, by the same clicks."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page

from tests.admin.page.browser import Browser, Login, Window
from tests.admin.page.browser.journeys.steps import answer
from tests.stub_server import StubServer


@pytest.fixture
def destination(destination: StubServer) -> StubServer:
    """Refuses everything of the sink `leads`."""
    destination.reply = answer
    return destination


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
