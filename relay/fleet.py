"""The configured sinks at work: each with its dispatcher, started, paused, swapped and drained."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from random import SystemRandom
from typing import NamedTuple

from relay import log, sinks
from relay.clock import Clock
from relay.condition import Condition
from relay.dispatcher import Dispatcher
from relay.errors import Temporary
from relay.feed import Feed
from relay.metrics import Metrics
from relay.settings import Duration
from relay.sink import Sink, SinkSettings
from relay.store.sqlite import SqliteStore


class _Member(NamedTuple):
    settings: SinkSettings
    sink: Sink
    dispatcher: Dispatcher


class Fleet:
    """All sinks of one relay; nothing is connected before `start`."""

    def __init__(
        self,
        settings: Iterable[SinkSettings],
        *,
        store: SqliteStore,
        metrics: Metrics,
        clock: Clock,
        gives_way: Callable[[], bool],
        feed: Feed,
    ) -> None:
        """`gives_way` is asked before each send, as a dispatcher does."""
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._gives_way = gives_way
        self._feed = feed
        self._log = log.get()
        self._members = {each.name: self._made(each) for each in settings}
        self._parts: asyncio.TaskGroup | None = None

    def _made(self, settings: SinkSettings) -> _Member:
        sink = sinks.load(settings.type).build(settings, self._clock)
        dispatcher = Dispatcher(
            settings,
            sink,
            store=self._store,
            metrics=self._metrics,
            clock=self._clock,
            dice=SystemRandom(),
            gives_way=self._gives_way,
            feed=self._feed,
        )
        return _Member(settings, sink, dispatcher)

    async def start(self, parts: asyncio.TaskGroup) -> None:
        """Let the dispatchers work as tasks of the group; what was paused stays so."""
        self._parts = parts
        paused = await self._store.desk.paused()
        for name, member in self._members.items():
            if name in paused:
                member.dispatcher.pause()
            parts.create_task(member.dispatcher.run())

    def __contains__(self, name: object) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def wake(self, name: str) -> None:
        """Say that the sink may have a delivery due; harmless for one that is gone."""
        member = self._members.get(name)
        if member is not None:
            member.dispatcher.wake()

    def conditions(self) -> Mapping[str, Condition]:
        """How each sink is doing."""
        return {name: each.dispatcher.condition() for name, each in self._members.items()}

    async def pause(self, name: str) -> None:
        """Keep what comes for the sink until `resume`, also over a restart; raises KeyError."""
        member = self._members[name]
        await self._store.desk.pause(name, now_ms=self._clock.now_ms())
        member.dispatcher.pause()
        self._log.info("sink.paused", sink=name)

    async def resume(self, name: str) -> None:
        """Deliver again; raises KeyError."""
        member = self._members[name]
        await self._store.desk.resume(name)
        member.dispatcher.resume()
        self._log.info("sink.resumed", sink=name)

    async def check(self, name: str) -> None:
        """Reach the far end without an event; raises KeyError and SinkError."""
        member = self._members[name]
        limit_s = member.settings.timeout.seconds
        try:
            async with asyncio.timeout(limit_s):
                await member.sink.check()
        except TimeoutError:
            raise Temporary(f"no answer within {limit_s:g} s") from None

    async def drain(self, grace: Duration) -> None:
        """Start nothing more anywhere, and let what is on its way end for as long."""
        each = [member.dispatcher.drain(grace) for member in self._members.values()]
        await asyncio.gather(*each)

    async def close(self) -> None:
        """Let every connection go, whatever goes wrong with one."""
        async with AsyncExitStack() as closing:
            for member in self._members.values():
                closing.push_async_callback(member.sink.close)
