"""Adoption of a new config by the parts that run."""

import asyncio
from collections.abc import Callable, Container

import msgspec

from relay.app.enrichment import Enrichment
from relay.app.public_side import PublicSide
from relay.config import Config
from relay.config.changes import Changes
from relay.config.secret_checks import expired
from relay.core.clock import Clock
from relay.core.errors import ConfigError, Fault, InvalidTemplate, Stopping
from relay.core.sink import Sink
from relay.delivery.replayer import Replayer
from relay.delivery.supervisor import DispatcherSupervisor
from relay.reconciliation.reconciler import Reconciler
from relay.store import Store
from relay.telemetry import log
from relay.telemetry.metrics import Metrics


class Adoption(msgspec.Struct, eq=False, kw_only=True):
    """Switches every part to a new config, or none."""

    store: Store
    public_side: PublicSide
    supervisor: DispatcherSupervisor
    replayer: Replayer
    reconciler: Reconciler
    enrichment: Enrichment
    metrics: Metrics
    clock: Clock
    is_stopping: Callable[[], bool]

    async def adopt(self, config: Config, changes: Changes) -> None:
        """Switch to a config at once; on an error, nothing has changed.

        Raises ConfigError, Stopping and StoreError.
        """
        sinks = await self._build(config, names={*changes.sinks.added, *changes.sinks.changed})
        # First, because without the new credentials the store may not be readable any more.
        async with self.store.adopted(config.store):
            paused = await self.supervisor.paused()
            if self.is_stopping():
                raise Stopping("the relay is stopping")
        for source in changes.sources.added:
            self.metrics.add_source(source)
            show_totals(self.store, self.metrics, source)
        self.public_side.adopt(config)
        self.replayer.routes = config.routes
        self.reconciler.adopt(config.sources, config.routes)
        self.enrichment.adopt(config)
        grace = config.server.drain_timeout
        self.supervisor.adopt(config.sinks, sinks, paused=paused, grace=grace)
        for source in changes.sources.removed:
            self.metrics.drop_source(source)
        self.show_secrets(config)

    async def _build(self, config: Config, *, names: Container[str]) -> dict[str, Sink]:
        settings = [each for each in config.sinks if each.name in names]
        sinks: dict[str, Sink] = {}
        faults: list[Fault] = []
        try:
            sinks = await asyncio.to_thread(self.supervisor.build, settings)
        except* (ValueError, InvalidTemplate) as errors:
            # A file that was readable during the check is gone by now.
            faults = [Fault("sink", str(error)) for error in errors.exceptions]
        if faults:
            raise ConfigError(str(config.file), tuple(faults))
        return sinks

    def show_secrets(self, config: Config) -> None:
        """Show the sources' secrets in the metrics, and log the expired ones."""
        for source in config.sources:
            self.metrics.show_secrets(source.name, [key.label for key in source.keys])
        for warning in expired(config.sources, now_ms=self.clock.now_ms()):
            log.get().warning("config.warning", key=warning.path, reason=warning.message)


def show_totals(store: Store, metrics: Metrics, source: str) -> None:
    """Set a source's counters to what the store has counted."""
    for total in store.totals(source):
        metrics.counted(total)
