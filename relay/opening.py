"""What a relay finds when it starts, and tells: what its store rests on, how long it was away."""

from relay import log
from relay.clock import Clock
from relay.downtime import Downtime, between
from relay.metrics import Metrics
from relay.store import disk, driver
from relay.store.sqlite import SqliteStore


class Opening:
    """One start; `downtime` is known once it was reported."""

    def __init__(self, store: SqliteStore, *, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._log = log.get()
        self.downtime: Downtime | None = None

    async def report(self) -> None:
        """Before the first heartbeat, which would hide how long no relay was there."""
        self._report_store()
        alive_ms = await self._store.desk.last_alive_ms()
        self.downtime = between(alive_ms, self._clock.now_ms())
        if self.downtime is not None:
            self._report_downtime(self.downtime)

    def _report_store(self) -> None:
        path = str(self._store.path)
        if driver.has_wal_reset_fault():
            self._log.warning("store.sqlite_fault", sqlite=driver.VERSION, advice=_ADVICE_SQLITE)
        network = disk.network_file_system(self._store.path)
        if network is not None:
            self._log.warning("store.network_file_system", path=path, reason=network)

    def _report_downtime(self, downtime: Downtime) -> None:
        self._metrics.was_down(downtime.seconds, downtime.lost_s)
        if downtime.lacks is None:
            self._log.info("relay.was_down", seconds=round(downtime.seconds))
        else:
            away_s, lost_s = round(downtime.seconds), round(downtime.lost_s)
            self._log.warning("relay.was_down", seconds=away_s, lost_s=lost_s, advice=_ADVICE_LOST)


_ADVICE_LOST = (
    "the sender tries for 620 s; events whose first try fell into the first lost_s seconds of the "
    "time away did not come again: relay status says from when to when"
)
_ADVICE_SQLITE = (
    "this SQLite can lose pages where several programs write to the file; relay writes with one "
    "connection only; open it with no other program, or install relay[sqlite]"
)
