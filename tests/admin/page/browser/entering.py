"""Ways into a relay's page: by its login, or with the cookie of a login that was made before."""

from collections.abc import Sequence
from typing import Any

from playwright.async_api import Page

from tests.admin.page.browser import Window
from tests.admin.page.visiting import visiting
from tests.operator import TOKEN
from tests.service import Relay

Cookies = Sequence[Any]
"""As a browser's context takes them."""


async def log_in(tab: Page, relay: Relay, path: str = "/", *, token: str = TOKEN) -> None:
    """Open a view, be asked for the token, and give it."""
    await tab.goto(relay.service.admin.url + path)
    await tab.get_by_label("Token", exact=True).fill(token)
    await tab.get_by_role("button", name="Log in").click()
    await tab.get_by_role("navigation", name="Views").wait_for()


async def cookies_of(relay: Relay, *, token: str = TOKEN) -> Cookies:
    """Log in without a browser."""
    async with visiting(relay, token=token) as visitor:
        return [
            {"name": each.name, "value": each.value or "", "url": visitor.origin}
            for each in visitor.client.cookies.jar
        ]


async def entered(window: Window, relay: Relay, path: str = "/", *, token: str = TOKEN) -> Page:
    """Open a view in a tab that is logged in already."""
    await window.context.add_cookies(await cookies_of(relay, token=token))
    return await window.tab(relay.service.admin.url + path)
