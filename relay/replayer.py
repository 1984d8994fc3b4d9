"""Replays: stored events delivered again, a few at a time, behind the live ones of each sink."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from relay import log
from relay.clock import Clock
from relay.errors import StoreBroken, StoreError
from relay.routing import Route, match
from relay.store.desk import REOPENED, Chosen, Desk, Replay, Selection

STEP = 100
"""Events that are looked at in one go; their bodies are what a replay holds in memory."""

AHEAD = 200
"""Deliveries of one replay that may be pending; a cancelled one takes them back."""

LOOK_AGAIN_S = 0.25
STORE_AGAIN_S = 1.0

Count = Counter[tuple[str, str]]
"""Deliveries by kind of event and sink."""


class Replayer:
    """Begins, walks on and ends replays; what it has begun goes on after a restart."""

    def __init__(
        self, desk: Desk, routes: Sequence[Route], *, clock: Clock, wake: Callable[[str], None]
    ) -> None:
        """`wake` is told of every sink that has deliveries again; `routes` may be replaced."""
        self.routes = routes
        self._desk = desk
        self._clock = clock
        self._wake = wake
        self._bell = asyncio.Event()
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    async def count(self, selection: Selection) -> Count:
        """What a replay of the selection would deliver; raises StoreError."""
        until = await self._desk.last()
        found: Count = Counter()
        cursor = 0
        while chosen := await self._desk.choose(selection, after=cursor, until=until, limit=STEP):
            for each in chosen:
                found.update(
                    (each.event.kind, sink) for _, sink in self._deliveries(each, selection)
                )
            cursor = chosen[-1].seq
        return found

    async def begin(self, selection: Selection) -> Replay:
        """Start a replay; raises StoreError."""
        total = (await self.count(selection)).total()
        until = await self._desk.last()
        now_ms = self._clock.now_ms()
        replay = await self._desk.begin(selection, total=total, until=until, now_ms=now_ms)
        self._log.info("replay.begun", count=total)
        self._bell.set()
        return replay

    async def cancel(self, number: int) -> Replay | None:
        """End a replay and take back what of it is not on its way; None for one never begun.

        Raises StoreError.
        """
        replay = await self._desk.replay(number)
        if replay is None or replay.state != "running":
            return replay
        self._log.info("replay.cancelled", count=replay.opened)
        return await self._desk.end(replay, "cancelled", now_ms=self._clock.now_ms())

    async def run(self) -> None:
        """Walk on with what has been begun until cancelled; raises StoreBroken."""
        while True:
            self._bell.clear()
            try:
                idle = await self._walk()
            except StoreBroken:
                raise
            except StoreError as error:
                self._sampled.line("store.unavailable", reason=str(error))
                await asyncio.sleep(STORE_AGAIN_S)
                continue
            if idle:
                await self._bell.wait()
            else:
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _walk(self) -> bool:
        """One step of every running replay; True where there is none."""
        running = [each for each in await self._desk.replays(limit=STEP) if each.state == "running"]
        for replay in running:
            while await self._step(replay):
                # Others shall come in between: what is stored, and what is asked.
                await asyncio.sleep(0)
                replay = await self._desk.replay(replay.id) or replay  # noqa: PLW2901
        return not running

    async def _step(self, replay: Replay) -> bool:
        """Open the next deliveries; True where more may be opened at once."""
        if replay.state != "running" or await self._desk.under_way(replay.id) >= AHEAD:
            return False
        chosen = await self._desk.choose(
            replay.selection, after=replay.cursor, until=replay.until, limit=STEP
        )
        now_ms = self._clock.now_ms()
        if not chosen:
            ended = await self._desk.end(replay, "done", now_ms=now_ms)
            self._log.info("replay.done", count=ended.opened)
            return False
        wanted = [each for one in chosen for each in self._deliveries(one, replay.selection)]
        await self._desk.open(replay, wanted, cursor=chosen[-1].seq, now_ms=now_ms)
        for sink in {sink for _, sink in wanted}:
            self._wake(sink)
        return True

    def _deliveries(self, chosen: Chosen, selection: Selection) -> list[tuple[int, str]]:
        # The routes of today decide, so that a sink is never sent what it is not to have.
        routes = [each for each in self.routes if selection.sink in (None, each.sink)]
        wanted = REOPENED[selection.outcome]
        return [
            (chosen.seq, verdict.sink)
            for verdict in match(chosen.event, routes)
            if verdict.outcome == "takes" and chosen.standing.get(verdict.sink) in wanted
        ]
