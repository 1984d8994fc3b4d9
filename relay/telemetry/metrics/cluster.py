"""Metrics of the relays that share a store."""

from relay.telemetry.metrics.labels import MEMBER_STATES
from relay.telemetry.metrics.registry import Registry


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
