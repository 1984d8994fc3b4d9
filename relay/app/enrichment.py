"""Builds the watch histories for sinks with `enrich`, and none for relays without such a sink."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from relay.config import Config
from relay.core.api_settings import ApiSettings
from relay.core.clock import Clock
from relay.core.event import Event
from relay.core.watch_history import KeptHistory, WatchHistory
from relay.store import Store
from relay.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from relay.video_service.enrichment import Viewers, WatchHistories


class Enrichment:
    """Fulfils `relay.core.sink.Enricher`; loads nothing until a config asks for it."""

    def __init__(self, store: Store, *, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._histories: WatchHistories | None = None

    def adopt(self, config: Config) -> None:
        """Ask the APIs of this config from now on; no request is made before a lead is sent."""
        apis = _asked(config)
        if self._histories is None and apis:
            self._histories = self._load()
        if self._histories is not None:
            self._histories.adopt(apis)

    async def watch_history(self, event: Event) -> WatchHistory | None:
        return None if self._histories is None else await self._histories.watch_history(event)

    def forget(self, email: str) -> None:
        """Drop all that is kept of a person."""
        if self._histories is not None:
            self._histories.forget(email)

    def of(self, email: str) -> Sequence[KeptHistory]:
        """Return all that is kept of a person."""
        return () if self._histories is None else self._histories.of(email)

    async def close(self) -> None:
        if self._histories is not None:
            await self._histories.close()

    def _load(self) -> "WatchHistories":
        from relay.video_service.enrichment import WatchHistories  # noqa: PLC0415

        return WatchHistories(
            connect=self._connect,
            is_erased=self._is_erased,
            metrics=self._metrics,
            clock=self._clock,
        )

    def _connect(self, settings: ApiSettings) -> "Viewers":
        from relay.video_service.api.client import Api  # noqa: PLC0415

        return Api(settings, budgets=self._store.request_budgets, clock=self._clock)

    async def _is_erased(self, address: str) -> bool:
        return bool(await self._store.personal_data.erasures(limit=1, email=address))


def _asked(config: Config) -> Mapping[str, ApiSettings]:
    """Return the APIs of the sources of which a sink with `enrich` gets leads."""
    enriching = [sink for sink in config.sinks if sink.enrich]
    return {
        source.name: source.api
        for source in config.sources
        if source.api is not None
        and any(sink.sources is None or source.name in sink.sources for sink in enriching)
    }
