"""Records of replays and of the events that they select."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from relay.core.delivery import Status
from relay.core.event import Event
from relay.store.selection import Selection

ReplayState = Literal["running", "done", "cancelled"]

Progress = Callable[[float, int], None]
"""Called with the share of the events looked at, 0 to 1, and the number of deliveries so far."""


def unreported(_: float, __: int) -> None:
    """Progress that is not reported."""


class Mark(NamedTuple):
    """A position in the store: the last event and the last attempt before it."""

    event: int
    attempt: int


class Replay(msgspec.Struct, frozen=True):
    """A pass over stored events that makes their deliveries pending again."""

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    """Selected deliveries, as counted at the start."""
    opened: int
    """Deliveries made pending so far, without those taken back."""
    cursor: int
    """`seq` of the last event processed for every sink."""
    until: Mark
    """Newest event and attempt at the start; a delivery tried since then is not opened."""
    ended_ms: int | None


class PlannedDelivery(NamedTuple):
    """A delivery for a replay to open: event (`seq`), sink, and ordering key, if any."""

    seq: int
    sink: str
    key: str | None = None


class DeliveryState(NamedTuple):
    """State of a delivery for a replay; pending also if it was tried since the replay started."""

    status: Status
    reason: str | None = None


class ReplayCandidate(msgspec.Struct, frozen=True):
    """A stored event with its body, selected by a replay."""

    seq: int
    event: Event
    standing: Mapping[str, DeliveryState]
    """Selected deliveries, by sink."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries that a replay would make."""

    deliveries: Counter[tuple[str, str, str | None]]
    """Counts by kind of event, sink, and reason of a dead letter."""
    events: int
    """Selected events that still have their body."""
    under_way: int
    """Selected deliveries that are pending, which a replay leaves alone."""
