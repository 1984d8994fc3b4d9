"""Ways into a relay's page: by its login, or with the cookies of a login that was made before."""

from playwright.async_api import Page

from tests.admin.page.browser import Login
from tests.admin.page.visiting import visiting
from tests.operator import TOKEN
from tests.service import Relay


async def log_in(tab: Page, *, token: str = TOKEN) -> None:
    """Give the token that the page asks for."""
    await tab.get_by_label("Token", exact=True).fill(token)
    await tab.get_by_role("button", name="Log in").click()


async def login_of(relay: Relay, *, token: str = TOKEN) -> Login:
    """Log in without a browser."""
    async with visiting(relay, token=token) as visitor:
        cookies = [
            {"name": each.name, "value": each.value, "url": visitor.origin}
            for each in visitor.client.cookies.jar
        ]
        return Login(visitor.origin, cookies)
