"""Fixtures of the tests of the `amqp` sink."""

from collections.abc import AsyncIterator, Callable

import pytest

from relay.sinks.amqp.sink import AmqpSink
from tests.conftest import ManualClock
from tests.sinks.amqp.harness import AmqpHarness
from tests.sinks.conftest import Closing

Make = Callable[..., AmqpSink]


@pytest.fixture
async def destination() -> AsyncIterator[AmqpHarness]:
    async with AmqpHarness() as harness:
        yield harness


@pytest.fixture
def make(destination: AmqpHarness, closing: Closing) -> Make:
    """Builds sinks, and closes them after the test."""

    def make(**changed: object) -> AmqpSink:
        sink = closing(destination.build(ManualClock(), **changed))
        assert isinstance(sink, AmqpSink)
        return sink

    return make


@pytest.fixture
def sink(make: Make) -> AmqpSink:
    return make()
