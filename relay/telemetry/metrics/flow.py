"""Metrics of how the backlogs of sinks move; from the relay that dispatches each."""

import math

from relay.core.sink_status import Flow
from relay.telemetry.metrics.labels import BEHIND, DIRECTIONS
from relay.telemetry.metrics.registry import OPEN, Registry


class FlowMetrics:
    """Shows the same figures as the status; NaN where they are not known yet."""

    def __init__(self, registry: Registry) -> None:
        self._rates = registry.gauge(
            "relay_backlog_flow_per_second",
            "Deliveries that came to be pending, and that ended, over the last minutes.",
            {"sink": OPEN, "direction": DIRECTIONS},
        )
        self._end = registry.gauge(
            "relay_backlog_expected_end_seconds",
            "Time until nothing waits at the pace of the last minutes; +Inf: never at this pace.",
            {"sink": OPEN},
        )
        self._behind = registry.gauge(
            "relay_sink_falls_behind",
            "1 for an active sink whose backlog grows, or takes longer than give_up_after.",
            {"sink": OPEN, "reason": BEHIND},
        )

    def set(self, sink: str, flow: Flow | None) -> None:
        if flow is None:
            rates, end_s = (math.nan, math.nan), math.nan
        else:
            rates = flow.in_per_minute / 60, flow.out_per_minute / 60
            end_s = math.inf if flow.end_s is None else flow.end_s
        self._rates[sink, "in"], self._rates[sink, "out"] = rates
        self._end[sink] = end_s
        is_growing = flow is not None and flow.growing_since_ms is not None
        is_too_long = flow is not None and flow.too_long_since_ms is not None
        self._behind[sink, "growing"] = is_growing
        self._behind[sink, "too_long"] = is_too_long

    def drop(self, sink: str) -> None:
        """Stop exposing the figures of a sink that another relay dispatches."""
        for gauge in (self._rates, self._end, self._behind):
            gauge.drop(sink)
