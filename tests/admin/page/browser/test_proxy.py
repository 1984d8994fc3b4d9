"""The page behind nginx, by TLS and below a path, as docs/console.md says."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests import service
from tests.admin.page.browser import Browser, see_live
from tests.admin.page.browser.entering import log_in
from tests.admin.page.nginx import PREFIX, TlsNginx
from tests.admin.page.visiting import ADMIN
from tests.admin.test_api import body, send
from tests.operator import operating
from tests.service import Relay
from tests.stub_server import StubServer

HOST = "hooks.relay.test"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with StubServer() as destination:
        tables = f'{ADMIN}allowed_hosts = ["{HOST}"]\n'
        settings = service.read(tmp_path, tables=tables, destination=destination)
        async with service.serving(settings) as relay:
            yield relay


@pytest.fixture
async def url(tmp_path: Path, relay: Relay) -> AsyncIterator[str]:
    """The page's, as people know it."""
    nginx = TlsNginx(tmp_path / "nginx", relay_port=relay.service.admin.port)
    await asyncio.to_thread(nginx.start)
    try:
        yield f"https://{HOST}:{nginx.port}{PREFIX}"
    finally:
        await asyncio.to_thread(nginx.stop)


async def state_of(relay: Relay, name: str) -> str:
    async with operating(relay) as operator:
        sinks = [each["condition"] for each in (await operator.get("/sinks"))["sinks"]]
    (state,) = (each["state"] for each in sinks if each["name"] == name)
    return str(state)


async def see_event(tab: Page, relay: Relay, *, script: bool) -> None:
    """An event that comes while the page is open: by itself, else after a reload."""
    if script:
        await see_live(tab)
    await send(relay, body("behind-nginx"))
    if not script:
        await tab.reload()
    await expect(tab.locator("#rows")).to_contain_text("behind-nginx")


@pytest.mark.parametrize("script", [True, False])
async def test_login_live_updates_an_action_and_logout_work_behind_a_proxy(
    browser: Browser, relay: Relay, url: str, *, script: bool
) -> None:
    async with browser.open(script=script) as window:
        tab = await window.tab(f"{url}/events?kind=lead.*")
        await log_in(tab)
        await expect(tab).to_have_url(f"{url}/events?kind=lead.*")
        names = ["__Secure-relay", "__Secure-relay-known"]
        cookies = await window.context.cookies()
        assert sorted(cookie["name"] for cookie in cookies) == names
        for cookie in cookies:
            assert (cookie["path"], cookie["sameSite"]) == (PREFIX, "Strict")
            assert (cookie["secure"], cookie["httpOnly"]) == (True, True)
        await see_event(tab, relay, script=script)
        await tab.get_by_role("link", name="Sinks", exact=True).click()
        await tab.get_by_role("button", name="Pause leads").click()
        await expect(tab.locator("#notice")).to_contain_text("leads is paused")
        assert await state_of(relay, "leads") == "paused"
        async with tab.expect_download() as download:
            await tab.goto(f"{url}/events")
            await tab.get_by_role("link", name="CSV").click()
        assert "behind-nginx" in Path(await (await download.value).path()).read_text("utf-8")
        await tab.get_by_role("button", name="Log out").click()
        await expect(tab).to_have_url(f"{url}/login")
        (known,) = await window.context.cookies()
        assert known["name"] == names[1]
        await tab.goto(f"{url}/sinks")
        await expect(tab).to_have_url(re.compile(r"/login\?next=%2Fsinks$"))
    (line,) = relay.lines("login.done")
    assert (line["actor"], line["client"]) == ("admin", "127.0.0.1")
