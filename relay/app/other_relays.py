"""Has open pages follow the other relays of a store, whose work this one sees in the store only."""

from collections.abc import Callable, Iterable, Mapping

from relay.core.sink_status import SinkStatus
from relay.store import Backlog, Store
from relay.telemetry.activity_stream import ActivityStream


class OtherRelays:
    """Compares what this relay has not done itself with the last look; without others, nothing."""

    def __init__(
        self,
        store: Store,
        *,
        sources: Callable[[], Iterable[str]],
        statuses: Callable[[], Mapping[str, SinkStatus]],
        activity: ActivityStream,
    ) -> None:
        self._store = store
        self._sources = sources
        self._statuses = statuses
        self._activity = activity
        self._seen: tuple[int, Mapping[str, object]] | None = None

    def notice(self, backlogs: Mapping[str, Backlog]) -> None:
        """Count the changes since the last look; `backlogs` are the current ones."""
        now = self._arrived(), self._elsewhere(backlogs)
        before, self._seen = self._seen or now, now
        if now[0] != before[0]:
            self._activity.count("arrived elsewhere")
        if now[1] != before[1]:
            self._activity.count("settled elsewhere")
            self._activity.count("state elsewhere")

    def _arrived(self) -> int:
        """Return how many events others have accepted, and this relay before its start."""
        totals = (each for source in self._sources() for each in self._store.totals(source))
        return sum(each.events for each in totals) - self._activity.counts.get("accepted", 0)

    def _elsewhere(self, backlogs: Mapping[str, Backlog]) -> Mapping[str, object]:
        return {
            name: (each.state, each.last_delivered_ms, each.last_error_ms, backlogs.get(name))
            for name, each in self._statuses().items()
            if each.is_elsewhere
        }
