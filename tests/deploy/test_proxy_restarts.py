"""Restarts and crashes of the relay behind each proxy, under load.

Its socket stays open in another process, as with systemd: connections wait in the queue.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import orjson
import pytest

from tests.deploy import activated
from tests.deploy.activated import ActivatedRelay
from tests.deploy.proxies import Caddy, Nginx, Proxy, Traefik, in_front, post
from tests.guarantees import ledger
from tests.guarantees.process import SECRET, until

CONNECTIONS = 8

PATIENCE_S = 10.0
"""The sender's own."""


class Load:
    """The sender on persistent connections, each with one event after the other."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._numbers = count()
        self.statuses: dict[str, int] = {}
        """By event; all of them were sent once only."""

    async def flow(self, stop: asyncio.Event) -> None:
        async with await self._proxy.call() as caller:
            while not stop.is_set():
                event_id = f"evt_{next(self._numbers):06}"
                body = orjson.dumps({"id": event_id, "event": "video.ready", "data": {}})
                answer = await caller.ask(post(body, secret=SECRET))
                self.statuses[event_id] = answer.status
                await asyncio.sleep(0.01)

    async def grows(self) -> None:
        """Return after more acknowledgements on the connections."""
        enough = len(self.statuses) + 10 * CONNECTIONS
        await until(lambda: len(self.statuses) >= enough, what="more acknowledgements")


async def crash(relay: ActivatedRelay) -> None:
    await relay.kill()
    await relay.start()


@pytest.mark.parametrize(
    ("kind", "gap"),
    [
        pytest.param(Nginx, ActivatedRelay.restart, id="nginx-restart"),
        pytest.param(Nginx, crash, id="nginx-crash"),
        pytest.param(Caddy, ActivatedRelay.restart, id="caddy-restart"),
        pytest.param(Traefik, ActivatedRelay.restart, id="traefik-restart"),
        pytest.param(Traefik, crash, id="traefik-crash"),
    ],
)
async def test_no_request_fails_while_the_relay_restarts_behind_a_proxy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Proxy],
    gap: Callable[[ActivatedRelay], Awaitable[None]],
) -> None:
    monkeypatch.setattr("tests.caller.PATIENCE_S", PATIENCE_S)
    stop = asyncio.Event()
    async with (
        activated.relay(tmp_path, sinks="") as relay,
        in_front(kind, tmp_path, relay_port=relay.port) as proxy,
        asyncio.TaskGroup() as connections,
    ):
        load = Load(proxy)
        for _ in range(CONNECTIONS):
            connections.create_task(load.flow(stop))
        for _ in range(2):
            await load.grows()
            await gap(relay)
        await load.grows()
        stop.set()
    # A request that was repeated because its answer was lost is a duplicate, and as good.
    assert set(load.statuses.values()) <= {200, 202}
    stored = sorted(event_id for _, event_id in ledger.read(relay.store).events)
    assert stored == sorted(load.statuses)
