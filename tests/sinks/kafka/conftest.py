"""Fixtures of the tests of the `kafka` sink."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import ManualClock
from tests.sinks.kafka.harness import KafkaHarness, Sinks


@pytest.fixture
async def harness() -> AsyncIterator[KafkaHarness]:
    async with KafkaHarness() as harness:
        yield harness


@pytest.fixture
async def make(harness: KafkaHarness, clock: ManualClock) -> AsyncIterator[Sinks]:
    sinks = Sinks(harness, clock)
    yield sinks
    for sink in sinks.made:
        await sink.close()
