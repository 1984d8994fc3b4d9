"""The report at a start: warnings about the store, and how long the relay was away."""

from contextlib import suppress

import msgspec

from relay.core.clock import Clock
from relay.core.delivery_rules import WINDOW_S, Downtime, downtime_between
from relay.core.errors import StoreFull
from relay.store import Store
from relay.telemetry import log
from relay.telemetry.metrics import Metrics


class StartupReport(msgspec.Struct, eq=False, kw_only=True):
    """One start; `downtime` is set by `report`."""

    store: Store
    metrics: Metrics
    clock: Clock
    downtime: Downtime | None = None

    async def report(self) -> None:
        """Write the first heartbeat, and with it the absence that it ends."""
        for warning in self.store.warnings():
            log.get().warning(warning.event, **warning.fields)
        now_ms = self.clock.now_ms()
        alive_ms = await self.store.absences.last_alive_ms()
        if alive_ms is None:
            log.get().info("store.new", path=self.store.location, advice=_ADVICE_NEW)
        self.downtime = downtime_between(alive_ms, now_ms)
        # Without free space no event is accepted either, so the absence continues.
        with suppress(StoreFull):
            await self.store.absences.beat(
                now_ms=now_ms, cause="crashed" if self.store.unclean else "stopped", over_ms=0
            )
        if self.downtime is not None:
            self._report_downtime(self.downtime)

    def _report_downtime(self, downtime: Downtime) -> None:
        self.metrics.outages.was_down(downtime.seconds, downtime.lost_s)
        if downtime.lacks is None:
            log.get().info("relay.was_down", seconds=round(downtime.seconds))
        else:
            away_s, lost_s = round(downtime.seconds), round(downtime.lost_s)
            log.get().warning("relay.was_down", seconds=away_s, lost_s=lost_s, advice=_ADVICE_LOST)


_ADVICE_NEW = (
    "no relay has used this store before; if one has run here, it used another: compare [store] in "
    "the config, and the folder that a relative path starts from"
)
_ADVICE_LOST = (
    f"the sender retries for {WINDOW_S} s; events first sent in the first lost_s seconds of the "
    "downtime are lost: relay absences list shows the interval"
)
