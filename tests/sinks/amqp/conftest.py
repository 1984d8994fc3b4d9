"""Fixtures of the tests of the `amqp` sink."""

from collections.abc import AsyncIterator, Callable

import pytest

from relay.sinks.amqp.sink import AmqpSink
from tests.conftest import ManualClock
from tests.sinks.amqp.harness import AmqpHarness

Make = Callable[..., AmqpSink]


@pytest.fixture
async def destination() -> AsyncIterator[AmqpHarness]:
    async with AmqpHarness() as harness:
        yield harness


@pytest.fixture
async def make(destination: AmqpHarness) -> AsyncIterator[Make]:
    """Builds sinks, and closes them after the test."""
    made: list[AmqpSink] = []

    def make(**changed: object) -> AmqpSink:
        sink = destination.build(ManualClock(), **changed)
        assert isinstance(sink, AmqpSink)
        made.append(sink)
        return sink

    yield make
    for sink in made:
        await sink.close()


@pytest.fixture
def sink(make: Make) -> AmqpSink:
    return make()
