"""A sink's state, and the pace of its backlog, as operators see them."""

from typing import Literal

import msgspec

from relay.core.retry import Refusals
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


State = Literal["active", "throttled", "parked", "paused"]

WaitReason = Literal[
    "rate", "order", "pause", "breaker", "digest", "sends", "fetch", "credit", "settlement", "owner"
]
"""Why a sink with due deliveries begins none.

`sends` and `digest`: those in flight take all slots, and are within their time limit.
`credit`: requests go first. `settlement`: outcomes wait for the store. `owner`: another relay has
the sink, or this one has just taken it over.
"""

REASON_WORDS: dict[WaitReason, str] = {
    "rate": "its rate",
    "order": "an earlier event of its key",
    "pause": "a person: it is paused",
    "breaker": "the next probe",
    "digest": "its digest",
    "sends": "a send in flight",
    "fetch": "the store to answer",
    "credit": "requests, which go first",
    "settlement": "outcomes to be stored",
    "owner": "its owner to change",
}
"""For people, after "waits for"."""

STANDSTILL_MS = 60_000
"""The dispatcher is built anew at the same time, which mostly ends it."""


def stands_still(since_ms: int | None, *, now_ms: int) -> bool:
    """Whether due deliveries have not begun for too long, for no reason."""
    return since_ms is not None and now_ms - since_ms > STANDSTILL_MS


def outlook_of(
    state: str, since_ms: int | None, flow: Flow | None, *, pending: int | None, now_ms: int
) -> str:
    """Say when nothing will wait any longer; `since_ms` is that of a standstill."""
    is_still = stands_still(since_ms, now_ms=now_ms)
    return outlook(flow, state="stands still" if is_still else state, pending=pending)


class SinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one sink; times are milliseconds since the epoch."""

    name: str
    type: str | None
    """None for a sink that is not in the config."""
    state: State | Literal["not configured", "standby"]
    """`standby`: no relay of a cluster dispatches it yet, or it has not said how the sink is."""
    since_ms: int | None = None
    """Start of the current state, over restarts, as far as the stored states tell."""
    in_flight: int = 0
    delivered_last_minute: int = 0
    next_try_ms: int | None = None
    """Time of the next probe of a throttled or parked sink."""
    last_error: str | None = None
    last_error_ms: int | None = None
    last_delivered_ms: int | None = None
    waits_for: WaitReason | None = None
    """Why the next delivery does not begin; None where one may, or none is due."""
    stands_still_since_ms: int | None = None
    """Since when deliveries were due and none began for no reason; None unless that is so."""
    is_elsewhere: bool = False
    """Whether another relay of a cluster dispatches it, or none yet."""
    refusals: Refusals | None = None
    """Set where the destination refuses every event, and the sink is parked for that."""
    flow: Flow | None = None
    """How its backlog moves; None until the relay that dispatches it has seen a minute of it."""
