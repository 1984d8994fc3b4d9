"""A sink's state and throughput, as operators see them."""

from typing import Literal

import msgspec

from relay.core.flow import Flow, outlook
from relay.core.retry import Refusals

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


class ThroughputWindow:
    """Counts the last minute's deliveries with a resolution of one second, in constant memory."""

    WINDOW_S = 60

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        """Deliveries by second, the oldest first."""

    def add(self, count: int, now_s: float) -> None:
        second = int(now_s)
        self._counts[second] = self._counts.get(second, 0) + count
        if len(self._counts) > self.WINDOW_S:
            del self._counts[next(iter(self._counts))]

    def last_minute(self, now_s: float) -> int:
        start_s = int(now_s) - self.WINDOW_S
        return sum(count for second, count in self._counts.items() if second > start_s)
