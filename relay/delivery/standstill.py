"""Looks for sinks that stand still, and builds their dispatchers anew.

A look reads the store and the time of the last start, so that a dispatcher that is stuck cannot
hide it.
"""

import asyncio

import msgspec

from relay.core.clock import Clock
from relay.core.errors import StoreUnavailable
from relay.core.standstill import REBUILD_S
from relay.delivery.configured_sink import ConfiguredSink
from relay.delivery.supervisor import DispatcherSupervisor
from relay.store import FirstDue, Store
from relay.telemetry import log
from relay.telemetry.metrics import Metrics

LOOK_EVERY_S = 5.0


class StandstillMonitor(msgspec.Struct, eq=False, kw_only=True):
    """Watches the sinks that this relay dispatches."""

    supervisor: DispatcherSupervisor
    store: Store
    metrics: Metrics
    clock: Clock

    async def run(self) -> None:
        """Look until cancelled; raises StoreBroken."""
        async with asyncio.TaskGroup() as rebuilds:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                await self._look(rebuilds)

    async def _look(self, rebuilds: asyncio.TaskGroup) -> None:
        watched = self.supervisor.dispatched()
        idle = {each.name: each.dispatcher.under_way for each in watched if _is_idle(each)}
        try:
            first_due = await self.store.first_due(idle, now_ms=self.clock.now_ms())
        except StoreUnavailable:
            # The heartbeat reports it.
            return
        for member in self.supervisor.dispatched():
            if member not in watched:
                continue
            self._judge(member, first_due.get(member.name, FirstDue()))
            self.metrics.standstill(member.name, member.standstill.seconds)
            status = member.status(now_ms=self.clock.now_ms())
            self.metrics.sink_waits(member.name, status.waits_for)
            if member.standstill.needs_rebuild():
                member.standstill.is_rebuilt = True
                rebuilds.create_task(self._rebuild(member))

    def _judge(self, member: ConfiguredSink, first: FirstDue) -> None:
        now_ms, now_s, due_s = self.clock.now_ms(), self.clock.monotonic(), None
        if first.due_ms is not None and member.dispatcher.status().state == "active":
            due_s = now_s - (now_ms - first.due_ms) / 1000
        member.is_held_by_order = first.due_ms is None and first.is_held
        member.standstill.observe(
            due_s=due_s,
            last_start_s=member.dispatcher.last_start_s,
            reason=member.dispatcher.waits_for(),
            now_s=now_s,
        )

    async def _rebuild(self, member: ConfiguredSink) -> None:
        waited_for = member.dispatcher.waits_for() or "nothing that it knows of"
        log.get().error(
            "sink.stands_still",
            sink=member.name,
            seconds=round(member.standstill.seconds),
            reason=f"deliveries are due and none begins; it waits for {waited_for}",
            advice=_ADVICE,
        )
        await self.supervisor.rebuild(member.name)
        log.get().info("sink.rebuilt", sink=member.name)


def _is_idle(member: ConfiguredSink) -> bool:
    """Whether no send has started since the last look."""
    return member.dispatcher.last_start_s <= member.standstill.looked_s


_ADVICE = (
    f"its dispatcher is built anew, once, after {REBUILD_S:g} s; if it still stands still then, "
    "restart the relay and report the log"
)
