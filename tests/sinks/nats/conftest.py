"""Fixtures of the tests of the `nats` sink."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.sinks.conformance import built
from tests.sinks.conftest import Closing

Make = Callable[..., NatsSink]


def build(**table: Any) -> NatsSink:
    sink: NatsSink = built("nats", **table)
    return sink


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def make(server: NatsServer, closing: Closing) -> Make:
    """Builds sinks of the server, which has its stream, and closes them after the test."""
    await server.put_stream()
    return lambda **table: closing(build(**{"servers": server.url, **table}))
