"""A sandbox that is served, and a client with its Admin key."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from relay.core.clock import Clock
from relay.sandbox.model import Access, Workspace
from relay.sandbox.sandbox import Sandbox
from tests.conftest import NOW_MS
from tests.guarantees.process import http_client
from tests.sandbox.stepped_clock import SteppedClock

MEDIA = {"title": "A tour", "filename": "tour.mp4", "type": "video/mp4"}


@dataclass
class Served:
    """A sandbox with its URL."""

    sandbox: Sandbox
    url: str
    client: httpx.AsyncClient

    def headers(self, access: Access) -> dict[str, str]:
        keys = self.sandbox.workspace.keys.values()
        (value, *_) = [key.value for key in keys if key.access == access]
        return {"Authorization": f"Bearer {value}"}

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        access: Access = "Admin",
        params: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        headers = self.headers(access)
        return await self.client.request(method, path, json=json, headers=headers, params=params)

    async def control(self, path: str, json: Any = None) -> httpx.Response:
        answer = await self.client.post(f"/sandbox/{path}", json=json or {})
        assert answer.is_success, answer.text
        return answer

    async def add(self, title: str = "A tour") -> dict[str, Any]:
        answer = await self.control("videos", {"title": title})
        video: dict[str, Any] = answer.json()["video"]
        return video

    async def register(self, url: str, *events: str) -> dict[str, Any]:
        answer = await self.ask("POST", "/v1/webhooks", json={"url": url, "events": [*events]})
        assert answer.status_code == 201, answer.text
        webhook: dict[str, Any] = answer.json()["webhook"]
        return webhook

    async def deliveries(self, webhook_id: str) -> list[dict[str, Any]]:
        answer = await self.ask("GET", f"/v1/webhooks/{webhook_id}/deliveries")
        attempts: list[dict[str, Any]] = answer.json()["deliveries"]
        return attempts

    async def step(self, seconds: float) -> None:
        clock = self.sandbox.schedule.clock
        await self.sandbox.run_until(clock.now_ms() + round(seconds * 1000))


@contextlib.asynccontextmanager
async def serving(
    workspace: Workspace | None = None,
    *,
    clock: Clock | None = None,
    speed: float = 1.0,
    state: Path | None = None,
    timeout_s: float = 10.0,
    allowed_hosts: Sequence[str] = (),
) -> AsyncIterator[Served]:
    """Serve a sandbox whose clock is stepped, unless another one is given."""
    sandbox = Sandbox(
        workspace,
        clock=clock or SteppedClock(NOW_MS),
        speed=speed,
        state=state,
        timeout_s=timeout_s,
        allowed_hosts=allowed_hosts,
    )
    try:
        async with (
            sandbox.listen() as url,
            http_client(base_url=url) as client,
        ):
            yield Served(sandbox, url, client)
    finally:
        await sandbox.close()
