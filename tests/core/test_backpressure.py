"""Backpressure: high while many requests wait, and for a moment after."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from relay.core.acceptance import THRESHOLD, Backpressure


@contextmanager
def waiting(backpressure: Backpressure, requests: int) -> Iterator[None]:
    with ExitStack() as entered:
        for _ in range(requests):
            entered.enter_context(backpressure.waiting())
        yield


async def until_low(backpressure: Backpressure) -> None:
    async with asyncio.timeout(60):
        while backpressure.is_high():
            await asyncio.sleep(0.001)


async def test_it_is_high_while_more_than_a_few_requests_wait() -> None:
    backpressure = Backpressure()
    with waiting(backpressure, THRESHOLD):
        assert not backpressure.is_high()
        with waiting(backpressure, 1):
            assert backpressure.is_high()


async def test_it_stays_high_between_requests_answered_together_and_those_that_follow() -> None:
    backpressure = Backpressure()
    for _ in range(3):
        with waiting(backpressure, THRESHOLD + 1):
            pass
        assert backpressure.is_high()
    await until_low(backpressure)


async def test_it_stays_high_while_requests_go_on_to_wait() -> None:
    backpressure = Backpressure()
    with waiting(backpressure, THRESHOLD + 1):
        pass
    with waiting(backpressure, THRESHOLD + 1):
        await asyncio.sleep(0.02)
        assert backpressure.is_high()
    await until_low(backpressure)
