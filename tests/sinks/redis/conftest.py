"""Fixtures of the tests of the `redis` sink."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.sinks.redis.sink import RedisSink
from tests.brokers.redis import RedisServer
from tests.sinks.conformance import built
from tests.sinks.conftest import Closing

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
def make(server: RedisServer, closing: Closing) -> Make:
    """Builds sinks of the server, and closes them after the test."""
    return lambda **table: closing(build(**{"url": server.url, **table}))
