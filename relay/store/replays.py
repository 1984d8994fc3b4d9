"""Replays, and the records of stored events that they work on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from relay.core.delivery import Status
from relay.core.event import Event
from relay.store.selection import Selection

ReplayState = Literal["running", "done", "cancelled"]


class Mark(NamedTuple):
    """A place in what was written: the last event, and the last attempt, of all that is older."""

    event: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A walk over stored events that makes deliveries of them anew."""

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    """Deliveries that it is for, as counted when it began."""
    opened: int
    """Those that it has made pending, each once, and has not taken back."""
    cursor: int
    """The `seq` of the last event that it has looked at for every sink."""
    until: Mark
    """The newest event and attempt when it began; a delivery tried since then is not opened."""
    ended_ms: int | None


class Wanted(NamedTuple):
    """A delivery that a replay is to make: of an event (`seq`) to a sink, with its key if any."""

    seq: int
    sink: str
    key: str | None = None


class Standing(NamedTuple):
    """How a delivery stands for a replay: pending also where it was tried since that began."""

    status: Status
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A stored event with its body, on its way to be delivered again."""

    seq: int
    event: Event
    standing: Mapping[str, Standing]
    """Its deliveries that are meant, by sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a replay would deliver."""

    deliveries: Counter[tuple[str, str, str | None]]
    """By kind of event, sink, and why it is dead now."""
    events: int
    """That fit and still have their body."""
    under_way: int
    """Deliveries that fit but are pending, so that a replay leaves them alone."""
