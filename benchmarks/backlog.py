"""Pending deliveries put into a relay's store beforehand, as the receiver would have put them."""

import asyncio
import time
from collections.abc import Iterable

import orjson

from relay.core.clock import SystemClock
from relay.core.event import VIDEO_WATCHED, Event
from relay.core.routing import Verdict
from relay.store import Store, StoreSettings, engines

WAITERS = 512


async def fill(settings: StoreSettings, sink: str, bodies: Iterable[bytes]) -> None:
    """Accept an event with each body, to be delivered to one sink."""
    store = await engines.open_store(settings, clock=SystemClock())
    await accept(store, sink, bodies)
    await store.close()


async def accept(store: Store, sink: str, bodies: Iterable[bytes]) -> None:
    """Accept an event with each body into a store that is open."""
    verdicts = (Verdict(sink, "takes", ""),)
    todo = iter(bodies)

    async def waiter() -> None:
        for body in todo:
            await store.accept(event(body), verdicts, lambda _: None)

    async with asyncio.TaskGroup() as group:
        for _ in range(WAITERS):
            group.create_task(waiter())


def event(body: bytes) -> Event:
    return Event(
        source="main",
        id=orjson.loads(body)["id"],
        kind=VIDEO_WATCHED,
        created_at=None,
        received_ms=time.time_ns() // 1_000_000,
        body=body,
    )
