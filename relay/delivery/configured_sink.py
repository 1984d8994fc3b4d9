"""One configured sink of this relay, with its dispatcher and the checks of its destination."""

import asyncio
from collections.abc import Sequence

import msgspec

from relay.core.errors import Temporary
from relay.core.sink import Sink, SinkSettings
from relay.delivery.dispatcher import Dispatcher
from relay.outbound.batching import is_cancelled
from relay.telemetry import log

CLOSE_TIMEOUT_S = 5.0
"""Time a replaced sink has to close; its replacement starts afterwards."""

_CLOSED = "the sink was closed during the check"


class ConfiguredSink(msgspec.Struct, eq=False):
    """A sink and its dispatcher, which runs unless another relay dispatches the sink."""

    settings: SinkSettings
    sink: Sink
    dispatcher: Dispatcher
    life: asyncio.Task[None] | None = None
    """None while another relay dispatches the sink."""
    checks: set[asyncio.Task[str | None]] = msgspec.field(default_factory=set)
    """Those in progress."""
    is_closing: bool = False

    @property
    def name(self) -> str:
        return self.settings.name

    async def run_after(self, predecessors: Sequence[asyncio.Task[None]]) -> None:
        """Dispatch once those that had the same name have left."""
        if predecessors:
            await asyncio.wait(predecessors)
        await self.dispatcher.run()

    def follow(self, paused_ms: int | None, *, is_retried: bool) -> None:
        """Take over what operators have ordered at another relay."""
        is_paused = self.dispatcher.status().state == "paused"
        self.dispatcher.refetch()
        if paused_ms is not None and not is_paused:
            self.dispatcher.pause(since_ms=paused_ms)
        elif paused_ms is None and is_paused:
            self.dispatcher.resume()
        if is_retried:
            self.dispatcher.probe_now()

    async def check(self) -> str | None:
        """Reach the destination without an event, as `Sink.check` does."""
        if self.is_closing:
            raise Temporary(_CLOSED)
        limit_s = self.settings.timeout.seconds
        check = asyncio.ensure_future(self.sink.check())
        self.checks.add(check)
        check.add_done_callback(self.checks.discard)
        try:
            async with asyncio.timeout(limit_s):
                return await check
        except TimeoutError:
            raise Temporary(f"no answer within {limit_s:g} s") from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise Temporary(_CLOSED) from None

    async def close(self) -> None:
        """Close the sink within `CLOSE_TIMEOUT_S`; raises nothing."""
        self.is_closing = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                # A running check could open a connection after the close.
                for check in self.checks:
                    check.cancel()
                await asyncio.gather(*self.checks, return_exceptions=True)
                await self.sink.close()
        except Exception as error:  # noqa: BLE001  whatever it is, the relay goes on without this sink
            log.get().error("sink.bug", sink=self.name, **log.describe(error))
