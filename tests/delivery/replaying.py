"""A replayer on a real store; the test itself takes the opened deliveries."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import orjson

from relay.core.delivery import Result
from relay.core.event import Event
from relay.core.routing import Route, Verdict
from relay.delivery.replayer import Replayer
from relay.store.replays import Replay
from relay.store.selection import Selection
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.activity_stream import ActivityStream
from tests.conftest import NOW_MS
from tests.store.conformance import settlement
from tests.store.places import opened
from tests.virtual_time import LoopClock

TAKEN_AT_ONCE = 50


def event(number: int, *, kind: str = "lead.captured", at_ms: int = NOW_MS, **data: Any) -> Event:
    name = f"e{number:05}"
    body = orjson.dumps({"id": name, "event": kind, "data": data})
    return Event(
        source="main",
        id=name,
        kind=kind,
        created_at=None,
        received_ms=at_ms,
        body=body,
        headers=b"",
    )


class Bench:
    """A running replayer, its store, and sinks that take deliveries on request."""

    def __init__(self, file: Path, store: SqliteStore, *sinks: str) -> None:
        self.file = file
        self.store = store
        self.clock = LoopClock()
        self.activity = ActivityStream(self.clock)
        self.woken: Counter[str] = Counter()
        self.refetch = 0
        self.has_turn = True
        self.replayer = Replayer(
            store,
            [Route(sink) for sink in sinks],
            activity=self.activity,
            clock=self.clock,
            wake=lambda sink: self.woken.update([sink]),
            refetch=self._count_refetch,
            has_turn=lambda: self.has_turn,
        )

    def _count_refetch(self) -> None:
        self.refetch += 1

    async def begin(self, selection: Selection) -> Replay:
        """Begin a replay that has something to deliver."""
        begun = await self.replayer.begin(selection)
        assert begun is not None
        return begun

    async def accept(self, *events: Event, sinks: Sequence[str] = ("sales",)) -> None:
        """Accept events and deliver them to their sinks."""
        verdicts = [Verdict(sink, "takes", "") for sink in sinks]
        await asyncio.gather(
            *(self.store.accept(each, verdicts, lambda _: None) for each in events)
        )
        for sink in sinks:
            await self.take_all(sink)

    async def take(self, sink: str = "sales", *, result: Result = "delivered") -> list[str]:
        """Lease and settle some due deliveries, as a dispatcher would; return the ids in order."""
        lease = await self.store.lease(
            sink,
            now_ms=self.clock.now_ms(),
            limits={"live": TAKEN_AT_ONCE, "tried": TAKEN_AT_ONCE, "replay": TAKEN_AT_ONCE},
        )
        await asyncio.gather(
            *(self.store.settle(settlement(each, result)) for each in lease.deliveries)
        )
        return [each.event.id for each in lease.deliveries]

    async def take_all(self, sink: str = "sales", *, result: Result = "delivered") -> list[str]:
        taken: list[str] = []
        while ids := await self.take(sink, result=result):
            taken += ids
        return taken

    async def drain(self, replay: Replay, *sinks: str) -> dict[str, list[str]]:
        """Take all deliveries until the replay ends."""
        taken: dict[str, list[str]] = {sink: [] for sink in sinks or ("sales",)}
        async with asyncio.timeout(3600):
            while (await self.now(replay)).state == "running":
                for sink in taken:
                    taken[sink] += await self.take(sink)
                await asyncio.sleep(0.01)
        return taken

    async def now(self, replay: Replay) -> Replay:
        found = await self.store.replays.one(replay.id)
        assert found is not None
        return found

    async def until_still(self, replay: Replay) -> Replay:
        """Wait until the replay opens nothing more."""
        while True:
            before = await self.now(replay)
            await asyncio.sleep(5)
            if before == (after := await self.now(replay)):
                return after

    def statuses(self) -> Counter[tuple[str, str]]:
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as db, db:
            found = db.execute("SELECT sink, status, count(*) FROM deliveries GROUP BY 1, 2")
            counts = Counter({(sink, status): count for sink, status, count in found})
        db.close()
        return counts


@asynccontextmanager
async def replaying(folder: Path, *sinks: str) -> AsyncIterator[Bench]:
    """Run a replayer on the folder's store, and cancel it at the end of the block."""
    async with opened(folder / "relay.db", LoopClock()) as store:
        bench = Bench(folder / "relay.db", store, *(sinks or ("sales",)))
        running = asyncio.create_task(bench.replayer.run())
        try:
            yield bench
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
