"""Fixtures of the tests of the `nats` sink."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import SinkError
from relay.core.event import Event
from relay.sinks.nats.sink import NatsSink
from tests.brokers.nats import NatsServer
from tests.sinks.conformance import built

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
async def make(server: NatsServer) -> AsyncIterator[Make]:
    """Builds sinks of the server, which has its stream, and closes them after the test."""
    await server.put_stream()
    made: list[NatsSink] = []

    def make(**table: Any) -> NatsSink:
        made.append(build(**{"servers": server.url, **table}))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def error_of(sink: NatsSink, event: Event) -> SinkError:
    with pytest.raises(SinkError) as caught:
        await sink.send(event)
    return caught.value
