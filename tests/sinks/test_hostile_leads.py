"""Real destinations that dislike some events: the others are not kept waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relay import sinks
from relay.core import config_values
from relay.core.clock import SystemClock
from relay.core.sink import Sink, SinkSettings
from tests.brokers.mosquitto import PASSWORD, Mosquitto, user_properties
from tests.brokers.redis import RedisServer
from tests.delivery.dispatching import policy, working
from tests.stub_server import Reply, StubServer

SOON_S = 30.0
"""Longest wait for the good events, in real seconds, on a machine that is busy with others."""

Delivered = Callable[[], set[str]]
Place = tuple[dict[str, Any], Delivered]
"""A sink's table, and what says which events have arrived."""


@asynccontextmanager
async def firewall(folder: Path, bad: list[str]) -> AsyncIterator[Place]:
    """A server that forbids some bodies."""
    del folder
    hostile = [name.encode() for name in bad]
    taken: set[str] = set()

    def reply(request: Any) -> Reply:
        if any(b'"%b"' % name in request.body for name in hostile):
            return Reply(403)
        taken.add(msgspec.json.decode(request.body)["id"])
        return Reply()

    async with StubServer() as destination:
        destination.reply = reply
        yield {"type": "http", "url": destination.url()}, lambda: taken


@asynccontextmanager
async def redis(folder: Path, bad: list[str]) -> AsyncIterator[Place]:
    """A Redis of which some keys hold something else than a stream."""
    server = RedisServer(folder)
    server.start()

    def taken() -> set[str]:
        return {name for name in ("among", "behind", "later") if server.read(f"leads:{name}")}

    try:
        with closing(server.admin()) as admin:
            for name in bad:
                admin.set(f"leads:{name}", "no stream")
        yield {"type": "redis", "url": server.url, "stream": "leads:{{ id }}"}, taken
    finally:
        server.stop()


@asynccontextmanager
async def mqtt(folder: Path, bad: list[str]) -> AsyncIterator[Place]:
    """A broker with topics that the user may not write to."""
    server = Mosquitto(folder)
    denied = "".join(f"\ntopic deny relay/{name}" for name in bad)
    server.configure(topics=f"relay/#{denied}")
    server.start()

    def taken() -> set[str]:
        return {user_properties(message)["relay-id"] for message in server.read()}

    table = {
        "type": "mqtt",
        "url": server.url,
        "username": "relay",
        "password": PASSWORD,
        "client_id": "relay",
        "topic": "relay/{{ id }}",
    }
    try:
        yield table, taken
    finally:
        server.stop()


def build(table: dict[str, Any]) -> Sink:
    module = sinks.load(table["type"])
    decoded: SinkSettings = msgspec.convert(
        {"name": "sales", **table}, module.Settings, dec_hook=config_values.decode
    )
    return module.build(decoded, SystemClock())


async def arrived(delivered: Delivered, *ids: str) -> None:
    async with asyncio.timeout(SOON_S):
        while not set(ids) <= await asyncio.to_thread(delivered):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("count", [8, 120])
@pytest.mark.parametrize(
    "place", [firewall, *(pytest.param(each, marks=pytest.mark.servers) for each in (redis, mqtt))]
)
async def test_events_that_a_destination_forbids_do_not_keep_the_others_waiting(
    tmp_path: Path, place: Callable[..., Any], count: int, concurrency: int
) -> None:
    bad = [f"bad{number:03}" for number in range(count)]
    half = count // 2
    async with place(tmp_path, bad) as (table, delivered):
        sink = build(table)
        async with working(
            tmp_path, sink=sink, concurrency=concurrency, retry=policy(first="100ms")
        ) as bench:
            await bench.accept(*bad[:half], "among", *bad[half:], "behind")
            await arrived(delivered, "among", "behind")
            await bench.accept("later")
            await arrived(delivered, "later")
            async with asyncio.timeout(SOON_S):
                while await bench.pending() != count:
                    await asyncio.sleep(0.01)
            assert await bench.dead() == 0
        await sink.close()
