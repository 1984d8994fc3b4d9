"""One configured sink of this relay, with its dispatcher and the checks of its destination."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from relay.core.backlog_trend import BacklogTrend
from relay.core.config_values import Duration
from relay.core.errors import Temporary
from relay.core.sink import Sink, SinkSettings
from relay.core.sink_status import SinkStatus
from relay.core.standstill import Standstill
from relay.core.timeouts import RequestTimeout
from relay.delivery.dispatcher import Dispatcher
from relay.outbound.batching import is_cancelled
from relay.telemetry import log

CLOSE_TIMEOUT_S = 5.0
"""Time a replaced sink has to close; its replacement starts afterwards."""

_CLOSED = "the sink was closed during the check"


class Run(msgspec.Struct, eq=False):
    """A dispatcher, and the task that runs it; None where it has not begun."""

    dispatcher: Dispatcher
    life: asyncio.Task[None] | None
    is_over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set once nothing of it is in flight, and its leases are reclaimed."""

    async def end(self, grace: Duration) -> None:
        """Return once nothing of it is in flight; may be called again, with a shorter grace."""
        await self.dispatcher.drain(grace)
        if self.life is not None:
            await self.dispatcher.sends_ended()
            self.cancel()
            await asyncio.wait((self.life,))

    def cancel(self) -> None:
        """End what a drained dispatcher still waits for: it has nothing left to do."""
        if self.life is not None:
            self.life.cancel()


class ConfiguredSink(msgspec.Struct, eq=False):
    """A sink and its dispatcher, which runs unless another relay dispatches the sink."""

    settings: SinkSettings
    sink: Sink
    dispatcher: Dispatcher
    standstill: Standstill
    trend: BacklogTrend
    """Begun anew each time that this relay takes the sink over."""
    life: asyncio.Task[None] | None = None
    """None while another relay dispatches the sink."""
    checks: set[asyncio.Task[str | None]] = msgspec.field(default_factory=set)
    """Those in progress."""
    is_closing: bool = False
    is_rebuilding: bool = False
    """Whether its dispatcher is being built anew."""
    is_held_by_order: bool = False
    """Whether, at the last look, all its deliveries waited for others of their ordering keys."""
    replacing: asyncio.Task[None] | None = None
    """Replaces the sink by one with new connections."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def run(self) -> Run:
        return Run(self.dispatcher, self.life)

    @property
    def is_dispatched(self) -> bool:
        """Whether this relay dispatches the sink."""
        return self.life is not None or self.is_rebuilding

    def status(self, *, now_ms: int) -> SinkStatus:
        """Return the dispatcher's status, completed by what the standstill monitor knows."""
        status = self.dispatcher.status()
        since_ms = now_ms - round(self.standstill.seconds * 1000)
        return replace(
            status,
            waits_for=status.waits_for or ("order" if self.is_held_by_order else None),
            stands_still_since_ms=since_ms if self.standstill.seconds else None,
            flow=self.trend.flow,
        )

    async def run_after(self, predecessors: Sequence[asyncio.Task[None]]) -> None:
        """Dispatch once those that had the same name have left."""
        if predecessors:
            await asyncio.wait(predecessors)
        await self.dispatcher.run()

    async def check(self) -> str | None:
        """Reach the destination without an event, as `Sink.check` does."""
        if self.is_closing:
            raise Temporary(_CLOSED)
        limit = RequestTimeout(self.settings.timeout.seconds)
        try:
            async with limit:
                check = asyncio.ensure_future(self.sink.check())
                self.checks.add(check)
                check.add_done_callback(self.checks.discard)
                return await check
        except TimeoutError:
            raise Temporary(limit.reason()) from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise Temporary(_CLOSED) from None

    async def close(self) -> None:
        """Close the sink within `CLOSE_TIMEOUT_S`; raises nothing."""
        self.is_closing = True
        await self._close(self.sink)

    async def replace_sink(self, fresh: Sink) -> None:
        """Try `fresh` at once when the sends under way have ended; closes the old sink."""
        old, self.sink = self.sink, fresh
        await self.dispatcher.replace(fresh)
        # A probe by the old connections may have failed meanwhile. Not after the close, because
        # the destination may have asked for a pause by then.
        self.dispatcher.probe_now()
        await self._close(old)

    async def _close(self, sink: Sink) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                # A running check could open a connection after the close.
                for check in self.checks:
                    check.cancel()
                await asyncio.gather(*self.checks, return_exceptions=True)
                await sink.close()
        except Exception as error:  # noqa: BLE001  whatever it is, the relay goes on without this sink
            log.get().error("sink.bug", sink=self.name, **log.describe(error))
