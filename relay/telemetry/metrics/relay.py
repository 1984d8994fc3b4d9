"""Metrics of the relay as a whole: its process, its outages, and those that share its store."""

import platform
from typing import NamedTuple

from relay import __version__
from relay.telemetry.metrics.labels import FAST, MEMBER_STATES, RECONSTRUCTED_KINDS
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


class ClusterMetrics:
    """Updates the metrics of the cluster; exposes none for a store of one relay."""

    def __init__(self, registry: Registry) -> None:
        self._members = registry.gauge(
            "relay_members",
            "Relays that share the store; away: its heartbeats have stopped.",
            {"state": MEMBER_STATES},
        )
        self._configs_differ = registry.gauge(
            "relay_members_configs_differ",
            "1 if live relays that share the store have different configs.",
        )
        self._free_sinks = registry.gauge(
            "relay_sinks_without_owner",
            "Sinks that no relay of those that share the store has taken over in time.",
        )
        self.clear()

    def set(self, *, live: int, away: int, configs: int, free_sinks: int) -> None:
        """Set the figures of the relays that share the store: `configs` are different ones."""
        self._members["live"] = live
        self._members["away"] = away
        self._configs_differ[()] = configs > 1
        self._free_sinks[()] = free_sinks

    def clear(self) -> None:
        """Stop exposing these figures, which a store of one relay does not have."""
        for gauge in (self._members, self._configs_differ, self._free_sinks):
            gauge.clear()


class OutageMetrics:
    """Updates the metrics of outages."""

    def __init__(self, registry: Registry) -> None:
        self._down = registry.gauge(
            "relay_downtime_seconds", "Time without a running relay before this start."
        )
        self._lost = registry.gauge(
            "relay_downtime_lost_seconds",
            "Part of the downtime that the sender's retries did not cover: its events are lost.",
        )
        self._open_loss = registry.gauge(
            "relay_unacknowledged_loss_seconds",
            "Time from which events are lost, in absences that no operator has acknowledged.",
        )
        self._reconstructed = registry.counter(
            "relay_reconstructed_events_total",
            "Events made from the sender's API after an outage, since this start.",
            {"source": OPEN, "event": RECONSTRUCTED_KINDS},
        )
        self._unreconciled = registry.gauge(
            "relay_unreconciled_loss_seconds",
            "Time from which events are lost, in absences that no reconciliation has covered.",
            {"source": OPEN},
        )

    def was_down(self, seconds: float, lost_s: float) -> None:
        """Set the downtime before this start."""
        self._down[()] = seconds
        self._lost[()] = lost_s

    def unacknowledged_loss(self, seconds: float) -> None:
        self._open_loss[()] = seconds

    def reconstructed(self, source: str, kind: str) -> None:
        """Count a reconstructed event, once it is on disk."""
        self._reconstructed[source, kind] += 1

    def unreconciled_loss(self, source: str, seconds: float) -> None:
        self._unreconciled[source] = seconds
