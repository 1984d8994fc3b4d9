"""One relay of a run: its clock, its store and its dispatchers, started, stopped and killed."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from relay.app.sink_history import SinkHistory
from relay.core.acceptance import Backpressure
from relay.core.cluster.timing import SURVEY_JITTER, SURVEY_S
from relay.core.config_values import Duration
from relay.core.errors import SinkError, StoreError
from relay.core.sink import BatchSettings, Sink, SinkSettings
from relay.delivery.supervisor import DispatcherSupervisor
from relay.store.postgres.opening import FIRST_SAMPLES
from relay.telemetry.activity_stream import ActivityStream
from tests.delivery.simulation.destination import Destination, SimulatedBatchSink, SimulatedSink
from tests.delivery.simulation.line import Line, MachineClock

if TYPE_CHECKING:
    from relay.core.clock import Clock
    from tests.delivery.simulation.world import World

GRACE = Duration.parse("5s")
"""Longest time that sends in flight have at a handover."""


class SimulatedSupervisor(DispatcherSupervisor):
    """The real one, whose sinks lead to simulated destinations."""

    def __init__(
        self, settings: Iterable[SinkSettings], make: Callable[[str], Sink], **parts: Any
    ) -> None:
        self._make = make
        super().__init__(settings, **parts)

    def build(self, settings: Iterable[SinkSettings]) -> dict[str, Sink]:
        return {each.name: self._make(each.name) for each in settings}


class Member:
    """One relay, from its start to its stop or kill."""

    def __init__(self, world: "World", number: int, *, clock_error_ms: int) -> None:
        self.name = f"relay{number}"
        self._world = world
        self.machine = MachineClock(clock_error_ms)
        self.line = Line(
            self.machine,
            world.random,
            trip_s=world.trip_s,
            log=lambda call: world.log(f"{self.name} asks its store: {call}"),
        )
        self.store: Any = world.engine.store(self.line, number=number, lost=self._lost)
        self.clock: Clock = self.store.clock
        self.backpressure = Backpressure()
        activity = ActivityStream(self.clock)
        self._destinations = dict(world.destinations)
        """Those of the config that it starts with."""
        self.supervisor = SimulatedSupervisor(
            [each.settings for each in self._destinations.values()],
            lambda name: self._sink(world.destinations[name]),
            store=self.store,
            metrics=world.metrics,
            clock=self.clock,
            random=Random(world.random.random()),
            backpressure=self.backpressure,
            activity=activity,
        )
        self._history = SinkHistory(
            self.store,
            statuses=self.supervisor.statuses,
            downtime=lambda: None,
            activity=activity,
            clock=self.clock,
        )
        self.is_alive = True
        self.is_ready = False
        self.reaches_store_s = -math.inf
        """Before this time, a cut line explains a standstill."""
        self._stop = asyncio.Event()
        self._losing: set[asyncio.Task[None]] = set()
        self._lost_sinks: set[str] = set()
        self.life = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(FIRST_SAMPLES):
                await self._world.engine.synchronize(self.store)
            await self.supervisor.start(group)
            tasks = [group.create_task(self._history.run()), group.create_task(self._survey())]
            new = self._world.destinations.items() - self._destinations.items()
            if new:
                await self.reload(dict(new))
            self.is_ready = True
            await self._stop.wait()
            for task in tasks:
                task.cancel()

    async def _survey(self) -> None:
        """Follow the store's clock as a cluster's surveys do."""
        while True:
            jitter = self._world.random.uniform(-SURVEY_JITTER, SURVEY_JITTER)
            await asyncio.sleep(SURVEY_S * (1 + jitter))
            with suppress(StoreError):
                if step_ms := await self._world.engine.synchronize(self.store):
                    self._world.log(f"{self.name} learns that the store's clock is {step_ms} ms on")
                    for sink in self._world.destinations:
                        self.supervisor.wake(sink)

    async def reload(self, fresh: Mapping[str, Destination]) -> None:
        """Run all destinations from now on, as a reload does; those in `fresh` are new."""
        paused = await self.supervisor.paused()
        settings = [each.settings for each in self._world.destinations.values()]
        built = self.supervisor.build(each.settings for each in fresh.values())
        self.supervisor.adopt(settings, built, paused=paused, grace=GRACE)

    def _sink(self, destination: Destination) -> Sink:
        invariants = self._world.invariants
        batches = isinstance(destination.settings, BatchSettings)
        kind = SimulatedBatchSink if batches else SimulatedSink

        def begun(events: list[str]) -> None:
            self._world.log(f"{self.name} sends {', '.join(events)} to {destination.name}")
            self._world.guard(partial(invariants.begun, destination, events, self))

        def took(events: Sequence[str], errors: Sequence[SinkError | None]) -> None:
            for event, error in zip(events, errors, strict=True):
                if error is not None:
                    self._world.log(f"{destination.name} fails on {event}: {error.reason}")
            invariants.took(destination, events, errors)

        return kind(destination, begun=begun, over=partial(invariants.over, destination), took=took)

    def state(self, sink: str) -> str:
        status = self.supervisor.statuses().get(sink)
        return "standby" if status is None else status.state

    def _lost(self, sink: str) -> None:
        """End a sink that another relay may own."""
        if sink in self._lost_sinks:
            return
        self._lost_sinks.add(sink)
        self._world.log(f"{self.name} has lost {sink}")
        task = asyncio.get_running_loop().create_task(self._world.recover(sink, self))
        self._losing.add(task)
        task.add_done_callback(self._losing.discard)
        task.add_done_callback(lambda _: self._lost_sinks.discard(sink))

    async def stop(self) -> None:
        """Stop cleanly; its sinks have been handed over, or are drained."""
        await self.supervisor.drain(GRACE)
        self._stop.set()
        await asyncio.wait((self.life,))
        self.is_alive = False
        self.line.is_cut = True

    def kill(self) -> None:
        self.is_alive = False
        self.line.is_cut = True
        self.life.cancel()
