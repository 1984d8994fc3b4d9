"""Metrics of the store: its commits, its size, and the space that is left for it."""

import msgspec

from relay.telemetry.metrics.labels import FAST
from relay.telemetry.metrics.registry import Registry


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the store and of its disk's free space, which is None without a disk of its own."""

    store_bytes: int
    free_bytes: int | None
    min_free_bytes: int | None
    """With less free space, new events are answered with 503."""
    log_bytes: int | None
    """What the store's write-ahead log holds."""


class StoreMetrics:
    """Updates the metrics of the store."""

    def __init__(self, registry: Registry) -> None:
        self._commits = registry.histogram(
            "relay_store_commit_seconds", "Duration of a commit, fsync included.", FAST
        )
        self._bytes = registry.gauge("relay_store_bytes", "Size of the store.")
        self._free = registry.gauge(
            "relay_store_free_bytes", "Free space on the disk that holds the store."
        )
        self._floor = registry.gauge(
            "relay_store_min_free_bytes",
            "With less free space than this, new events are answered with 503.",
        )
        self._log = registry.gauge(
            "relay_store_log_bytes", "What the store's write-ahead log holds."
        )
        self._clock_offset = registry.gauge(
            "relay_clock_offset_seconds",
            "This host's clock less the store's, which the relay goes by.",
        )
        # Only a store on a disk of this machine has them, and a 0 would raise alarms.
        self._free.clear()
        self._floor.clear()
        self._log.clear()

    def committed(self, seconds: float) -> None:
        self._commits[()].observe(seconds)

    def set_size(self, size: int) -> None:
        self._bytes[()] = size

    def set_space(self, free: int, *, floor: int, log: int) -> None:
        """Set the free space, `min_free`, so that alert rules need not repeat it, and the log's."""
        self._free[()] = free
        self._floor[()] = floor
        self._log[()] = log

    def set_clock_offset(self, offset_ms: int) -> None:
        self._clock_offset[()] = offset_ms / 1000

    def clock_offset_s(self) -> float:
        """Return how far this host's clock is ahead of the store's, as of a second ago."""
        return self._clock_offset[()]

    def disk(self) -> Disk:
        """Return the sizes as of the last measurement, which runs every second."""
        return Disk(
            store_bytes=int(self._bytes[()]),
            free_bytes=_whole(self._free.get(())),
            min_free_bytes=_whole(self._floor.get(())),
            log_bytes=_whole(self._log.get(())),
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
