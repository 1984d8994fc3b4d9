"""The pace of a sink's backlog, in numbers and in words."""

from typing import Literal

import msgspec

from relay.core.units import number

LONGEST_S = 10 * 86_400
"""Longest time that is shown; an estimate of a longer one is worthless."""

Direction = Literal["growing", "draining", "steady"]


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """How a sink's backlog moves, by the last minutes."""

    in_per_minute: float
    """Deliveries that came to be pending: of new events, and of replays."""
    out_per_minute: float
    """Deliveries that ended: delivered, dead or discarded."""
    direction: Direction
    """`steady` if in and out differ only by chance."""
    retrying: int = 0
    """Pending deliveries that wait for the time of their next try."""
    wait_s: float | None = None
    """Time that due deliveries take at this pace, without new ones; None if nothing goes out."""
    end_s: float | None = None
    """Time until nothing is due at this pace; None if it never ends at it, or is not known."""
    growing_since_ms: int | None = None
    """Set once it has grown for ten minutes, until it does no longer."""
    too_long_since_ms: int | None = None
    """Since when `wait_s` exceeds the sink's `give_up_after`."""

    @property
    def falls_behind(self) -> bool:
        return self.growing_since_ms is not None or self.too_long_since_ms is not None


def rates(flow: Flow) -> str:
    """Say how the backlog moves: `30 a minute out, 168 in`."""
    return f"{rate(flow.out_per_minute)} a minute out, {rate(flow.in_per_minute)} in"


def outlook(flow: Flow | None, *, state: str, pending: int | None) -> str:
    """Say when nothing will wait any longer: `in about 17 h`."""
    if pending == 0:
        return "nothing waits"
    if state in _HELD:
        return _HELD[state]
    if flow is None or pending is None:
        return "not known yet"
    if flow.direction == "growing":
        return "not at this pace: growing"
    if flow.retrying >= pending:
        return "with the next tries"
    if flow.end_s is not None:
        return _MINUTE if flow.end_s < 60 else f"in {about(flow.end_s)}"
    if flow.wait_s is None:
        return "not at this pace: nothing goes out"
    return "not at this pace: as many come as go"


def place(ahead: int, *, is_more: bool, flow: Flow | None) -> str:
    """Say where a delivery waits: `behind 30,309, about 17 h`; empty if nothing is ahead of it."""
    if not ahead:
        return ""
    text = f"behind more than {number(ahead)}" if is_more else f"behind {number(ahead)}"
    if flow is None or not flow.out_per_minute:
        return text
    seconds = ahead / flow.out_per_minute * 60
    return f"{text}, {_MINUTE if seconds < 60 else about(seconds, is_least=is_more)}"


def rate(per_minute: float) -> str:
    """Format deliveries a minute: `168`, `0.4`."""
    return number(per_minute) if per_minute >= 10 else f"{per_minute:.1f}".removesuffix(".0")


def about(seconds: float, *, is_least: bool = False) -> str:
    """Format a rough duration: `about 17 h`, `over 10 d`."""
    is_over = is_least or seconds > LONGEST_S
    return f"{'over' if is_over else 'about'} {_rough(min(seconds, LONGEST_S))}"


def _rough(seconds: float) -> str:
    """Round to 1 min, 5 min, 1 h or 1 d."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    if minutes < 9.5:
        return f"{max(1, round(minutes))} min"
    if minutes < 57.5:
        return f"{5 * round(minutes / 5)} min"
    if hours < 47.5:
        return f"{round(hours)} h"
    return f"{round(days)} d"


_MINUTE = "within a minute"
_HELD = {
    "paused": "when it is resumed",
    "parked": "not while it is parked",
    "throttled": "not while it is throttled",
    "stands still": "not while it stands still",
    "not configured": "not while it is not in the config",
}
