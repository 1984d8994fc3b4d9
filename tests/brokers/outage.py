"""A load that a sink has to bring over while its broker is killed twice and frozen once."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Protocol

import msgspec

from relay import sinks
from relay.core import config_values, sample_events
from relay.core.acceptance import Backpressure
from relay.core.clock import SystemClock
from relay.core.config_values import Duration, Size
from relay.core.event import VIDEO_WATCHED
from relay.core.routing import Verdict
from relay.core.sink import Sink, SinkSettings
from relay.delivery.dispatcher import Dispatcher
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics

TIMEOUT_S = 1.0
FROZEN_S = 3.0
DEADLINE_S = 180.0
"""Long, because the machine may be busy, and moto needs most of it."""

_SINK = "queue"
_VERDICTS = (Verdict(_SINK, "takes", "events and sources match"),)
_TABLE = {
    "name": _SINK,
    "timeout": f"{TIMEOUT_S * 1000:.0f}ms",
    "retry": {"first": "100ms", "max": "1s"},
}


class Hurtable(Protocol):
    """A broker as the load sees it; each call returns once that is so."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class Case(ABC):
    """One broker, and what the load needs to know of it."""

    sink_type: ClassVar[str]
    events: ClassVar[int] = 3_000

    @abstractmethod
    def start(self, folder: Path) -> Hurtable:
        """Start it; skips the test where it is not installed."""

    @abstractmethod
    async def prepare(self) -> None:
        """Make the queue, durable; called once, after `start`."""

    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Give the keys of a `[[sink]]` table beyond name, type, timeout and retry."""

    @abstractmethod
    def ids(self) -> Sequence[str]:
        """Read every message and name the events, each as often as it is there."""

    def stop(self) -> None:
        """End `self.server`, if `start` came so far; may be called twice."""
        server = getattr(self, "server", None)
        if server is not None:
            server.stop()


@dataclass(frozen=True)
class Outcome:
    """What a real consumer found at the end, and how the sink took the outages."""

    missing: int
    duplicates: int
    throttled: int
    """So often was the sink seen throttled, once per outage."""


async def run(case: Case, folder: Path) -> Outcome:
    """Bring the case's events over with three outages, then read all of them."""
    broker = await asyncio.to_thread(case.start, folder)
    await case.prepare()
    async with asyncio.timeout(DEADLINE_S), _load(case, folder) as load:
        throttled = await _hurt(load, broker, events=case.events)
        await load.until(lambda pending: pending == 0)
    read = await asyncio.to_thread(case.ids)
    missing = {f"evt_{number}" for number in range(case.events)} - set(read)
    return Outcome(len(missing), len(read) - len(set(read)), throttled)


async def _hurt(load: "Load", broker: Hurtable, *, events: int) -> int:
    part = events // 5
    throttled = 0
    await load.accept(part)
    for _ in range(2):
        await load.accept(part)
        await load.under_way()
        await asyncio.to_thread(broker.kill)
        throttled += await load.throttled()
        await asyncio.to_thread(broker.restart)
    await load.accept(part)
    await load.under_way()
    broker.freeze()
    await asyncio.sleep(FROZEN_S)
    throttled += await load.throttled()
    broker.thaw()
    await load.accept(events - load.accepted)
    return throttled


class Load:
    """A real store and a real dispatcher that works on it."""

    def __init__(self, store: SqliteStore, sink: Sink, settings: SinkSettings) -> None:
        self.accepted = 0
        self._store = store
        self._clock = SystemClock()
        self._metrics = Metrics(["main"], [_SINK])
        self.dispatcher = Dispatcher(
            settings,
            sink,
            store=store,
            metrics=self._metrics,
            clock=self._clock,
            random=Random(0),
            backpressure=Backpressure(),
            activity=ActivityStream(self._clock),
        )

    async def accept(self, count: int) -> None:
        numbers = range(self.accepted, self.accepted + count)
        await asyncio.gather(*(self._accept(f"evt_{number}") for number in numbers))
        self.accepted += count

    async def under_way(self) -> None:
        """Wait until part of the backlog is delivered."""
        before = await self._pending()
        await self.until(lambda pending: pending < before - 100)

    async def throttled(self) -> bool:
        """Wait until the metrics show the sink as throttled."""
        line = f'relay_sink_state{{sink="{_SINK}",state="throttled"}} 1.0'
        async with asyncio.timeout(DEADLINE_S / 4):
            while line not in self._metrics.exposition("")[0].decode():
                await asyncio.sleep(0.02)
        return True

    async def until(self, holds: Callable[[int], bool]) -> None:
        """Wait until `holds` is true of the number of undelivered events."""
        while not holds(await self._pending()):
            await asyncio.sleep(0.02)

    async def _pending(self) -> int:
        backlog = (await self._store.backlogs()).get(_SINK)
        return 0 if backlog is None else backlog.pending

    async def _accept(self, event_id: str) -> None:
        event = sample_events.event(VIDEO_WATCHED, source="main", event_id=event_id)
        await self._store.accept(event, _VERDICTS, lambda _: self.dispatcher.wake())


@asynccontextmanager
async def _load(case: Case, folder: Path) -> AsyncIterator[Load]:
    module = sinks.load(case.sink_type)
    table = {**_TABLE, "type": case.sink_type, **case.table()}
    sink_settings = msgspec.convert(table, module.Settings, dec_hook=config_values.decode)
    sink = module.build(sink_settings, SystemClock())
    where = SqliteSettings(path=str(folder / "relay.db"), min_free=Size.parse("1B"))
    store = await open_store(where, clock=SystemClock())
    try:
        load = Load(store, sink, sink_settings)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.dispatcher.run())
            yield load
            await load.dispatcher.drain(Duration.parse("1s"))
    finally:
        await sink.close()
        await store.close()
