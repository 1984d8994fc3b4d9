"""An operator for tests: speaks to a running relay's admin API."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.guarantees.process import http_client
from tests.service import Relay

TOKEN = "the-admin-token-of-the-tests"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\n'
"""For a config's tables."""


class Operator:
    """Asks; whatever is not answered with 200 is a failure unless it is said beforehand."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, *, status: int = 200, **query: str | int) -> Any:
        answer = await self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: object = None, *, status: int = 200) -> Any:
        answer = await self.client.post(f"/api/v1{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


@contextlib.asynccontextmanager
async def operating(relay: Relay) -> AsyncIterator[Operator]:
    """An operator with the token, until the block ends."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with http_client(base_url=relay.service.admin.url, headers=headers) as client:
        yield Operator(client)
