"""Replays: stored events delivered again, a few at a time, behind the live ones of each sink."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from relay.core.clock import Clock
from relay.core.delivery import Status
from relay.core.errors import StoreBroken, StoreError
from relay.core.routing import Route, match
from relay.store.operations import Operations
from relay.store.replays import Chosen, Forecast, Mark, Replay, Wanted
from relay.store.selection import Selection
from relay.telemetry import log

STEP = 100
"""Events that are looked at in one go; their bodies are what a replay holds in memory."""

AHEAD = 500
"""Deliveries of one replay that may be pending for a sink; a cancelled one takes them back."""

LOOK_SOON_S = 0.05
"""Often enough that no sink comes to the end of what is ahead of it, however fast it is."""

LOOK_LATE_S = 0.5
"""The longest wait between two looks, at a sink that takes nothing."""

STORE_AGAIN_S = 1.0


class Replayer:
    """Begins, walks on and ends replays; what it has begun goes on after a restart."""

    def __init__(
        self,
        operations: Operations,
        routes: Sequence[Route],
        *,
        clock: Clock,
        wake: Callable[[str], None],
        refetch: Callable[[], None],
    ) -> None:
        """`wake` is told of every sink that has deliveries again; `routes` may be replaced.

        `put_back` has every sink give back what it holds and has not begun to send.
        """
        self.routes = routes
        self._operations = operations
        self._clock = clock
        self._wake = wake
        self._put_back = refetch
        self._cursors: dict[int, dict[str, int]] = {}
        """By replay and sink: a slow sink keeps no other one back.

        The store knows the least of them, and leaves out what a replay has opened before.
        """
        self._wakeup = asyncio.Event()
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    async def count(self, selection: Selection) -> Forecast:
        """What a replay of the selection would deliver; raises StoreError."""
        return await self._count(selection, until=await self._operations.newest())

    async def begin(self, selection: Selection) -> Replay | None:
        """Start a replay, or None where it would deliver nothing; raises StoreError."""
        until = await self._operations.newest()
        total = (await self._count(selection, until=until)).deliveries.total()
        if not total:
            return None
        now_ms = self._clock.now_ms()
        replay = await self._operations.begin(selection, total=total, until=until, now_ms=now_ms)
        self._log.info("replay.begun", replay=replay.id, count=total)
        self._wakeup.set()
        return replay

    async def cancel(self, number: int) -> Replay | None:
        """End a replay; when this returns, nothing of it will be sent that is not on its way.

        None for one never begun. Raises StoreError.
        """
        replay = await self._operations.replay(number)
        if replay is None or replay.state == "done":
            return replay
        self._put_back()
        ended = await self._operations.end(replay, "cancelled", now_ms=self._clock.now_ms())
        for route in self._routes(replay.selection):
            # What another replay has opened may have waited for what is taken back.
            self._wake(route.sink)
        self._log.info(f"replay.{ended.state}", replay=ended.id, count=ended.opened)
        return ended

    async def run(self) -> None:
        """Walk on with what has been begun until cancelled; raises StoreBroken."""
        wait_s: float | None = LOOK_SOON_S
        while True:
            self._wakeup.clear()
            try:
                wait_s = await self._walk(wait_s or LOOK_SOON_S)
            except StoreBroken:
                raise
            except StoreError as error:
                self._sampled.line("store.unavailable", reason=str(error))
                await asyncio.sleep(STORE_AGAIN_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()

    async def _walk(self, waited_s: float) -> float | None:
        """Walk on with every running replay as far as may be now; return how long to wait then.

        None for ever, where there is none.
        """
        running = await self._operations.running()
        self._cursors = {each.id: self._cursors.get(each.id, {}) for each in running}
        steps = 0
        for replay in running:
            while await self._step(replay):
                steps += 1
                # Others shall come in between: what is stored, and what is asked.
                await asyncio.sleep(0)
        if not running:
            return None
        return LOOK_SOON_S if steps else min(2 * waited_s, LOOK_LATE_S)

    async def _step(self, replay: Replay) -> bool:
        """Open the next deliveries of the sinks that run low; True if it did."""
        known = self._cursors[replay.id]
        sinks = {each.sink for each in self._routes(replay.selection)}
        cursors = {sink: known.get(sink, replay.cursor) for sink in sinks}
        ahead = await self._operations.under_way(replay.id)
        walking = {sink for sink in sinks if cursors[sink] < replay.until.event}
        if not walking:
            if not sinks & ahead.keys():
                await self._finish(replay)
            return False
        low = [sink for sink in walking if ahead.get(sink, 0) < AHEAD]
        if not low:
            return False
        # Those that are equally far are given what is read once.
        start = min(cursors[sink] for sink in low)
        group = frozenset(sink for sink in low if cursors[sink] == start)
        chosen = await self._operations.choose(
            replay.selection, self.routes, after=start, until=replay.until, limit=STEP
        )
        end = chosen[-1].seq if chosen else replay.until.event
        cursors |= dict.fromkeys(group, end)
        now = await self._open(replay, chosen, group, cursor=min(cursors.values()))
        known |= {sink: cursors[sink] for sink in group}
        return now.state == "running"

    async def _open(
        self, replay: Replay, chosen: Sequence[Chosen], sinks: frozenset[str], *, cursor: int
    ) -> Replay:
        wanted = [
            delivery
            for each in chosen
            for delivery in self._deliveries(each, replay.selection)
            if delivery.sink in sinks
        ]
        now_ms = self._clock.now_ms()
        now = await self._operations.open(replay, wanted, cursor=cursor, now_ms=now_ms)
        for sink in {each.sink for each in wanted}:
            self._wake(sink)
        return now

    async def _finish(self, replay: Replay) -> None:
        ended = await self._operations.end(replay, "done", now_ms=self._clock.now_ms())
        self._log.info(f"replay.{ended.state}", replay=ended.id, count=ended.opened)

    async def _count(self, selection: Selection, *, until: Mark) -> Forecast:
        found: Counter[tuple[str, str, str | None]] = Counter()
        events = under_way = cursor = 0
        while chosen := await self._operations.choose(
            selection, self.routes, after=cursor, until=until, limit=STEP
        ):
            for each in chosen:
                kind, standing = each.event.kind, each.standing
                for sink in (one.sink for one in self._deliveries(each, selection)):
                    dead = sink in standing and standing[sink].status is Status.DEAD
                    found[kind, sink, standing[sink].reason if dead else None] += 1
                under_way += sum(one.status is Status.PENDING for one in standing.values())
            events += len(chosen)
            cursor = chosen[-1].seq
        return Forecast(deliveries=found, events=events, under_way=under_way)

    def _deliveries(self, chosen: Chosen, selection: Selection) -> Iterable[Wanted]:
        # The routes of today decide, so that a sink is never sent what it is not to have.
        standing = {sink: each.status for sink, each in chosen.standing.items()}
        wanted = selection.reopened
        return [
            Wanted(chosen.seq, verdict.sink, verdict.key)
            for verdict in match(chosen.event, self._routes(selection))
            if verdict.outcome == "takes" and standing.get(verdict.sink) in wanted
        ]

    def _routes(self, selection: Selection) -> list[Route]:
        return [each for each in self.routes if selection.sink in (None, each.sink)]
