"""Metrics of the process: what runs, since when, and with which config."""

import platform
from typing import NamedTuple

from relay import __version__
from relay.telemetry.metrics.labels import FAST
from relay.telemetry.metrics.registry import OPEN, Registry


class Build(NamedTuple):
    """Versions of what runs."""

    relay: str
    revision: str
    """Of the image; empty if unknown."""
    python: str
    sqlite: str = ""
    """Of the library, if that is the store's engine; else empty."""
    postgres: str = ""
    """Of the server, if that is the store's engine; else empty."""


class ProcessMetrics:
    """Updates the metrics of the process."""

    def __init__(self, registry: Registry, *, revision: str) -> None:
        self._build_info = registry.gauge(
            "relay_build_info",
            "Always 1; the labels hold the versions.",
            dict.fromkeys(("version", "revision", "python", "sqlite", "postgres"), OPEN),
        )
        self._started = registry.gauge(
            "relay_start_time_seconds",
            "Start of this relay; unlike the process's own metric, present without /proc.",
        )
        self._reload_good = registry.gauge(
            "relay_config_last_reload_successful",
            "1 if the config that was read last is in use, 0 if it was refused.",
        )
        self._loop_lag = registry.histogram(
            "relay_loop_lag_seconds",
            "Time that a callback due at any moment waits for the event loop.",
            FAST,
        )
        self._log_lines_dropped = registry.counter(
            "relay_log_lines_dropped_total",
            "Log lines that were not written: nobody read them, or a write failed.",
        )
        self.build = Build(__version__, revision, platform.python_version())
        self._build_info[self.build] = 1
        self.reloaded(successful=True)

    def started(self, at_ms: int) -> None:
        self._started[()] = at_ms / 1000

    def opened(self, engine: str, version: str) -> None:
        """Show the version of the store's engine."""
        self._build_info.clear()
        self.build = self.build._replace(**{engine: version})
        self._build_info[self.build] = 1

    def loop_lagged(self, seconds: float) -> None:
        self._loop_lag[()].observe(seconds)

    def log_lines_dropped(self, total: int) -> None:
        self._log_lines_dropped[()] = total

    def reloaded(self, *, successful: bool) -> None:
        self._reload_good[()] = successful
