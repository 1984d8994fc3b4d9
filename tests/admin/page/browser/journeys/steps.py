"""What people do and see on the page, by the names that it gives things."""

import asyncio
import re
from pathlib import Path

from playwright.async_api import Download, Page, expect

from tests.admin.page.browser import TIMEOUT_MS
from tests.admin.test_api import body, send
from tests.service import Relay
from tests.stub_server import Reply, Request


def answer(request: Request) -> Reply:
    return Reply(422, b"no such field") if request.target == "/leads" else Reply()


async def press(tab: Page, name: str) -> None:
    await tab.get_by_role("button", name=name, exact=True).click()


async def follow(tab: Page, name: str) -> None:
    await tab.get_by_role("link", name=name, exact=True).first.click()


async def find(tab: Page, text: str) -> None:
    await tab.get_by_role("searchbox").fill(text)
    await tab.get_by_role("searchbox").press("Enter")


async def see_heading(tab: Page, text: str | re.Pattern[str]) -> None:
    await expect(tab.get_by_role("heading", level=1)).to_have_text(text)


async def see_notice(tab: Page, text: str) -> None:
    await expect(tab.locator("#notice")).to_contain_text(text)


async def see_path(tab: Page, path: str) -> None:
    """Wait for a path and query; that of a notice is left out."""
    await expect(tab).to_have_url(re.compile(re.escape(path) + r"([?&]done=[\w-]+)?$"))


async def until_settled(tab: Page, text: str | re.Pattern[str]) -> None:
    """Wait until a background job says something; without script, look again until then."""
    heading = tab.get_by_role("heading", level=1)
    pattern = re.compile(text)
    if await tab.locator("html.script").count():
        await expect(heading).to_have_text(pattern)
        return
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while pattern.search(shown := await heading.inner_text()) is None:
            assert re.match("Counting|Starting|Discarding|Replay|Discard", shown), shown
            if await (again := tab.get_by_role("link", name="Look again")).is_visible():
                await again.click()


async def download(tab: Page, click: str, role: str = "link") -> Download:
    async with tab.expect_download() as waiting:
        if role == "button":
            await press(tab, click)
        else:
            await follow(tab, click)
    return await waiting.value


async def text_of(file: Download) -> str:
    return Path(await file.path()).read_text(encoding="utf-8")


async def lead(relay: Relay, **data: object) -> str:
    """Send a lead that becomes a dead letter of `leads`; returns its id."""
    name = f"lead-{relay.stored() + 1}"
    deliveries = "relay_deliveries_total"
    before = await relay.counts(deliveries)
    await send(relay, body(name, "lead.captured", **data))
    for labels in (("dead", "leads"), ("delivered", "all")):
        await relay.until_counted(deliveries, *labels, value=before.get(labels, 0) + 1)
    return name
