"""Fixtures of the tests of the `redis` sink."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import SinkError
from relay.core.event import Event
from relay.sinks.redis.sink import RedisSink
from tests.brokers.redis import RedisServer
from tests.sinks.conformance import built

Make = Callable[..., RedisSink]


def build(**table: Any) -> RedisSink:
    sink: RedisSink = built("redis", **table)
    return sink


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: RedisServer) -> AsyncIterator[Make]:
    """Builds sinks of the server, and closes them after the test."""
    made: list[RedisSink] = []

    def make(**table: Any) -> RedisSink:
        made.append(build(**{"url": server.url, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def error_of(sink: RedisSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value
