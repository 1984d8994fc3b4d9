"""Cells and texts about the backlog of a sink, from the JSON of its condition."""

from collections.abc import Mapping
from typing import Any

import msgspec

from relay.core.flow import Flow, place, rate
from relay.core.sink_status import outlook_of


def flow_of(condition: Mapping[str, Any]) -> Flow | None:
    """Return the flow; None if it is not known, or the relay is of a version without it."""
    flow = condition.get("flow")
    return None if flow is None else msgspec.convert(flow, Flow)


def backlog_cells(
    condition: Mapping[str, Any], pending: int | None, *, now_ms: int
) -> dict[str, object]:
    """Return the cells of a table: deliveries a minute in and out, and when nothing waits."""
    flow, still_ms = flow_of(condition), condition["stands_still_since_ms"]
    return {
        "IN/MIN": None if flow is None else rate(flow.in_per_minute),
        "OUT/MIN": None if flow is None else rate(flow.out_per_minute),
        "DONE": outlook_of(condition["state"], still_ms, flow, pending=pending, now_ms=now_ms),
    }


def place_of(queued: Mapping[str, Any], condition: Mapping[str, Any]) -> str:
    """Return how many deliveries are ahead of one, in words; empty if it is next."""
    return place(queued["ahead"], is_more=queued["is_more"], flow=flow_of(condition))
