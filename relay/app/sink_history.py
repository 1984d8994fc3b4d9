"""Records the states of sinks, and the time for which no relay was running."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from relay.core.clock import Clock, ClockSetBack
from relay.core.delivery_rules import Downtime
from relay.core.errors import StoreError, StoreFull, StoreUnavailable
from relay.core.sink_status import SinkStatus, State
from relay.store import Store
from relay.store.sink_states import Change
from relay.telemetry import log
from relay.telemetry.activity_stream import Activity, ActivityStream

COMPARE_EVERY_S = 5.0
STOP_LIMIT_S = 1.0

WRITES_MAX = 5
"""Most writes in that time, for a sink may be parked and opened again many times a second."""


class SinkHistory:
    """Compares the states with the recorded ones, and writes only what differs.

    That a sink is parked is written at once: a relay that did not know it would let more events die
    that the destination refuses.
    """

    def __init__(
        self,
        store: Store,
        *,
        statuses: Callable[[], Mapping[str, SinkStatus]],
        downtime: Callable[[], Downtime | None],
        activity: ActivityStream,
        clock: Clock,
    ) -> None:
        """`downtime` is called in `run`, so that it may be unknown before."""
        self._store = store
        self._statuses = statuses
        self._downtime = downtime
        self._clock = clock
        self._sampled = log.Sampled(clock)
        self._set_back = ClockSetBack(clock)
        self._recorded: dict[str, State | None] = {}
        self._unrecorded: Downtime | None = None
        self._wakeup = asyncio.Event()
        activity.listen("state", self._state_changed)

    def _state_changed(self, activity: Activity) -> None:
        if activity["state"] == "parked":
            self._wakeup.set()

    async def run(self) -> None:
        """Record until cancelled; raises StoreBroken."""
        loop = asyncio.get_running_loop()
        self._unrecorded = self._downtime()
        while True:
            over_s = loop.time() + COMPARE_EVERY_S
            for _ in range(WRITES_MAX):
                self._wakeup.clear()
                await self._try_to_record()
                if not await self._is_woken_before(over_s):
                    break
            await asyncio.sleep(max(0.0, over_s - loop.time()))

    async def _is_woken_before(self, over_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(over_s):
                await self._wakeup.wait()
        return self._wakeup.is_set()

    async def _try_to_record(self) -> None:
        try:
            if self._unrecorded is not None:
                await self._record_downtime(self._unrecorded)
                self._unrecorded = None
            await self._record()
        except StoreFull:
            pass  # The heartbeat reports it.
        except StoreUnavailable as error:
            self._sampled.line("sink_history.stopped", reason=str(error))

    async def record_at_stop(self) -> None:
        """Record the changes since the last look; raises nothing, and takes a second at most.

        The next relay goes on from these states.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._record()

    async def _record_downtime(self, downtime: Downtime) -> None:
        known = await self._store.sink_states.since(downtime.from_ms)
        # The relay also lived when it recorded its last change, after its last heartbeat.
        changes = (span.from_ms for spans in known.values() for span in spans)
        alive_ms = max((at for at in changes if at <= downtime.to_ms), default=None)
        if alive_ms is not None:
            unknown = dict.fromkeys(known, Change(None))
            # Later than that change, which a note of the same time would replace.
            await self._store.sink_states.note(unknown, now_ms=alive_ms + 1)

    async def _record(self) -> None:
        statuses = self._statuses()
        here = {name: each for name, each in statuses.items() if not each.is_elsewhere}
        states = {name: _state(each) for name, each in here.items()}
        if self._set_back.happened():
            # Changes may be recorded at times that are still to come.
            self._recorded = dict.fromkeys(self._recorded)
        gone = dict.fromkeys(self._recorded.keys() - statuses.keys(), Change(None))
        new = {
            name: Change(state, here[name].since_ms)
            for name, state in states.items()
            if self._recorded.get(name) != state
        }
        if gone or new:
            await self._store.sink_states.note({**gone, **new}, now_ms=self._clock.now_ms())
        self._recorded = states


def _state(status: SinkStatus) -> State | None:
    match status.state:
        case "not configured" | "standby":
            return None
        case state:
            return state
