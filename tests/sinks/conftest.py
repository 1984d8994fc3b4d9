"""What tests of the sinks share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

import pytest

from relay.core.sink import Sink

S = TypeVar("S", bound=Sink)


class Closing(Protocol):
    def __call__(self, sink: S) -> S: ...


@pytest.fixture
async def closing() -> AsyncIterator[Closing]:
    """Closes sinks after the test."""
    async with AsyncExitStack() as stack:

        def closing(sink: S) -> S:
            stack.push_async_callback(sink.close)
            return sink

        yield closing
