"""What journeys begin with: each is made with JavaScript and without, by the same clicks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests import service
from tests.admin.page.browser import Browser, Login, Window
from tests.admin.page.browser.entering import login_of
from tests.admin.page.browser.journeys.steps import answer
from tests.admin.page.visiting import ADMIN
from tests.service import Relay
from tests.stub_server import StubServer


@pytest.fixture
async def destination() -> AsyncIterator[StubServer]:
    async with StubServer() as destination:
        destination.reply = answer
        yield destination


@pytest.fixture
async def relay(tmp_path: Path, destination: StubServer) -> AsyncIterator[Relay]:
    """A relay whose sink `leads` refuses everything."""
    async with service.serving(
        service.read(tmp_path, tables=ADMIN, destination=destination)
    ) as relay:
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
