"""Replays: stored events delivered again, a few at a time, behind each sink's live ones."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from relay.core.clock import Clock
from relay.core.delivery import Status
from relay.core.errors import StoreUnavailable
from relay.core.routing import Route, match
from relay.store import Store
from relay.store.replays import (
    Forecast,
    Mark,
    PlannedDelivery,
    Progress,
    Replay,
    ReplayCandidate,
    unreported,
)
from relay.store.selection import Selection
from relay.telemetry import log
from relay.telemetry.activity_stream import ActivityStream

EVENTS_PER_STEP = 100
"""Events read at once; their bodies are all that a replay holds in memory."""

PENDING_MAX = 500
"""Pending deliveries of one replay for a sink; cancelling it takes them back."""

POLL_MIN_S = 0.05
"""Shortest poll interval: no sink is fast enough to send `PENDING_MAX` within it."""

POLL_MAX_S = 0.5
"""Longest poll interval, reached while sinks take nothing."""

STORE_RETRY_S = 1.0

TURN_POLL_S = 1.0
"""Interval at which a relay looks whether it has become its turn to advance the replays."""

STEP_EVENTS = 10_000
"""Numbers of events that the first step looks through."""

STEP_S = 0.05
"""Time that a later step aims at, because other reads wait for it, and a count can be stopped."""


class _Reach(msgspec.Struct):
    """How many numbers of events a step looks through."""

    events: int = msgspec.field(default_factory=lambda: STEP_EVENTS)

    def took(self, seconds: float) -> None:
        """Learn from a step that found nothing, and so looked through all of them."""
        self.events = max(1, int(self.events * min(4, STEP_S / max(seconds, 1e-6))))


class Replayer:
    """Starts, advances and ends replays; they resume after a restart."""

    def __init__(
        self,
        store: Store,
        routes: Sequence[Route],
        *,
        activity: ActivityStream,
        clock: Clock,
        wake: Callable[[str], None],
        refetch: Callable[[], None],
        has_turn: Callable[[], bool],
    ) -> None:
        """`wake` is called with each sink that gets deliveries; `routes` may be replaced.

        `refetch` makes every sink release the deliveries that it has not started to send.
        `has_turn` says whether this relay, of those that share the store, advances the replays.
        """
        self.routes = routes
        self._store = store
        self._activity = activity
        self._clock = clock
        self._wake = wake
        self._refetch = refetch
        self._has_turn = has_turn
        self._cursors: dict[int, dict[str, int]] = {}
        """Progress by replay and sink, so that a slow sink does not delay the others.

        The store keeps the lowest of a replay, and skips deliveries that it has opened before.
        """
        self._reach = _Reach()
        self._wakeup = asyncio.Event()
        self._log = log.get()
        self._sampled = log.Sampled(clock)

    async def count(self, selection: Selection, *, progress: Progress = unreported) -> Forecast:
        """Forecast a replay of the selection; cancelling it is safe. Raises StoreError."""
        until = await self._store.events.newest()
        return await self._count(selection, until=until, progress=progress)

    async def begin(self, selection: Selection, *, counted: int | None = None) -> Replay | None:
        """Start a replay; None if it would deliver nothing. Raises StoreError.

        `counted` is the total of a count just made, which saves the time of another.
        """
        until = await self._store.events.newest()
        total = counted or (await self._count(selection, until=until)).deliveries.total()
        if not total:
            return None
        now_ms = self._clock.now_ms()
        replay = await self._store.replays.begin(selection, total=total, until=until, now_ms=now_ms)
        self._log.info("replay.begun", replay=replay.id, count=total)
        self._wakeup.set()
        return replay

    async def cancel(self, number: int) -> Replay | None:
        """End a replay: from the return on, none of its deliveries starts.

        None for an unknown replay. Raises StoreError.
        """
        replay = await self._store.replays.one(number)
        if replay is None or replay.state == "done":
            return replay
        self._refetch()
        cancelled = await self._end(replay, "cancelled")
        # A fetch may have read before the cancellation was committed.
        self._refetch()
        for route in self._routes(replay.selection):
            # Deliveries of another replay may have waited for one that is taken back.
            self._wake(route.sink)
        return cancelled

    def wake(self) -> None:
        """Say that a replay may have begun."""
        self._wakeup.set()

    async def run(self) -> None:
        """Advance the running replays until cancelled; raises StoreBroken."""
        wait_s: float | None = POLL_MIN_S
        while True:
            self._wakeup.clear()
            try:
                if self._has_turn():
                    wait_s = await self._advance(wait_s or 0.0)
                else:
                    wait_s = TURN_POLL_S
            except StoreUnavailable as error:
                self._sampled.line("store.unavailable", reason=str(error))
                await asyncio.sleep(STORE_RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()

    async def _advance(self, waited_s: float) -> float | None:
        """Advance every running replay by a step; return the next poll interval.

        None if no replay runs. A step at a time, so that none waits for the end of another.
        """
        running = await self._store.replays.running()
        self._cursors = {each.id: self._cursors.get(each.id, {}) for each in running}
        steps = [await self._step(replay) for replay in running]
        if not running:
            return None
        # Requests, deliveries and API calls run between two steps.
        return 0.0 if any(steps) else min(max(2 * waited_s, POLL_MIN_S), POLL_MAX_S)

    async def _step(self, replay: Replay) -> bool:
        """Open the next deliveries of the sinks that run low; True if it did."""
        own_cursors = self._cursors[replay.id]
        sinks = {each.sink for each in self._routes(replay.selection)}
        cursors = {sink: own_cursors.get(sink, replay.cursor) for sink in sinks}
        ahead = await self._store.replays.under_way(replay.id)
        unfinished = {sink for sink in sinks if cursors[sink] < replay.until.event}
        if not unfinished:
            if not sinks & ahead.keys():
                await self._end(replay, "done")
            return False
        low = {sink: cursors[sink] for sink in unfinished if ahead.get(sink, 0) < PENDING_MAX}
        if not low:
            return False
        # One that has fallen behind does not hold up the others.
        opened = [
            await self._open(replay, cursors, low, start) for start in sorted({*low.values()})
        ]
        return all(opened)

    async def _open(
        self, replay: Replay, cursors: dict[str, int], low: Mapping[str, int], start: int
    ) -> bool:
        """Open the next deliveries of sinks with the same progress, which share one read.

        False if the replay has ended.
        """
        group = [sink for sink, cursor in low.items() if cursor == start]
        chosen, end = await self._choose(replay.selection, start, replay.until, self._reach)
        cursors |= dict.fromkeys(group, end)
        deliveries = [
            delivery
            for candidate in chosen
            for delivery in self._deliveries(candidate, replay.selection)
            if delivery.sink in group
        ]
        current = await self._store.replays.open(
            replay, deliveries, cursor=min(cursors.values()), now_ms=self._clock.now_ms()
        )
        self._cursors[replay.id] |= dict.fromkeys(group, end)
        self._activity.count("replay")
        for sink in {delivery.sink for delivery in deliveries}:
            self._wake(sink)
        return current.state == "running"

    async def _end(self, replay: Replay, state: Literal["done", "cancelled"]) -> Replay:
        ended = await self._store.replays.end(replay, state, now_ms=self._clock.now_ms())
        self._activity.count("replay")
        self._log.info(f"replay.{ended.state}", replay=ended.id, count=ended.opened)
        return ended

    async def _count(
        self, selection: Selection, *, until: Mark, progress: Progress = unreported
    ) -> Forecast:
        deliveries: Counter[tuple[str, str, str | None]] = Counter()
        events = under_way = 0
        async for chosen, looked_to in self._selected(selection, until):
            for candidate in chosen:
                kind, standing = candidate.event.kind, candidate.standing
                for sink in (planned.sink for planned in self._deliveries(candidate, selection)):
                    dead = sink in standing and standing[sink].status is Status.DEAD
                    deliveries[kind, sink, standing[sink].reason if dead else None] += 1
                under_way += sum(now.status is Status.PENDING for now in standing.values())
            events += len(chosen)
            progress(looked_to / until.event, deliveries.total())
        return Forecast(deliveries=deliveries, events=events, under_way=under_way)

    async def _selected(
        self, selection: Selection, until: Mark
    ) -> AsyncIterator[tuple[Sequence[ReplayCandidate], int]]:
        """Yield the selected events, a few at a time, and the last number looked at."""
        end = until.event if selection.before is None else min(until.event, selection.before - 1)
        looked_to, reach = 0, _Reach()
        while looked_to < end:
            chosen, looked_to = await self._choose(
                selection, looked_to, Mark(end, until.attempt), reach
            )
            yield chosen, looked_to

    async def _choose(
        self, selection: Selection, after: int, until: Mark, reach: "_Reach"
    ) -> tuple[Sequence[ReplayCandidate], int]:
        """Return the next selected events within reach, and the last number looked at."""
        started_s = self._clock.monotonic()
        step = Mark(min(after + reach.events, until.event), until.attempt)
        chosen = await self._store.replays.choose(
            selection, self.routes, after=after, until=step, limit=EVENTS_PER_STEP
        )
        if chosen:
            return chosen, chosen[-1].seq
        reach.took(self._clock.monotonic() - started_s)
        return chosen, step.event

    def _deliveries(
        self, chosen: ReplayCandidate, selection: Selection
    ) -> Iterable[PlannedDelivery]:
        # The current routes decide: a sink must not get events that its routes exclude now.
        standing = {sink: each.status for sink, each in chosen.standing.items()}
        reopened = selection.reopened
        return [
            PlannedDelivery(chosen.seq, verdict.sink, verdict.key)
            for verdict in match(chosen.event, self._routes(selection))
            if verdict.outcome == "takes" and standing.get(verdict.sink) in reopened
        ]

    def _routes(self, selection: Selection) -> list[Route]:
        return [each for each in self.routes if selection.sink in (None, each.sink)]
