"""A visitor of the page for tests, who logs in and follows links and forms without a script."""

import contextlib
from collections.abc import AsyncIterator, Callable

import httpx

from tests.admin.page.document import Element, parse
from tests.guarantees.process import http_client
from tests.operator import TOKEN
from tests.service import Relay

ADA = "ada@example.com"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
REORDERING = f"{HOSTILE}\u202egpj.exe"
"""Markup, and a mark that shows the end of a name backwards."""

VIEWER_TOKEN = "the-viewer-token-of-the-tests"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\nviewer_token = "{VIEWER_TOKEN}"\n'
"""For a config's tables."""

Start = Callable[..., contextlib.AbstractAsyncContextManager[Relay]]
"""Starts a relay; takes further tables of its config."""


class Visitor:
    """Asks for views and sends forms; a status other than 200 is a failure unless it is said."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.origin = str(client.base_url).rstrip("/")
        self._path = "/"
        self.html = ""
        """The last page, as it came."""

    async def see(self, path: str, *, status: int = 200) -> Element:
        self._path = path
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        self.html = answer.text
        return parse(answer.text)

    async def post(
        self, path: str, fields: dict[str, str], *, origin: str | None = None
    ) -> httpx.Response:
        headers = {
            "origin": self.origin if origin is None else origin,
            "referer": f"{self.origin}{self._path}",
        }
        return await self.client.post(path, data=fields, headers=headers)

    async def submit(self, form: Element) -> Element:
        """Send a form and see the view that it leads to."""
        answer = await self.post(form["action"], form.fields())
        assert answer.status_code == 303, answer.text
        return await self.see(answer.headers["location"])


@contextlib.asynccontextmanager
async def visiting(relay: Relay, *, token: str = TOKEN) -> AsyncIterator[Visitor]:
    """A visitor who has logged in, until the block ends."""
    async with http_client(base_url=relay.service.admin.url) as client:
        visitor = Visitor(client)
        answer = await visitor.post("/login", {"token": token})
        assert answer.status_code == 303, answer.text
        yield visitor
