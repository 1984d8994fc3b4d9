"""Metrics of outages: downtime, lost events, and those that were reconstructed."""

from relay.telemetry.metrics.labels import RECONSTRUCTED_KINDS
from relay.telemetry.metrics.registry import OPEN, Registry


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
