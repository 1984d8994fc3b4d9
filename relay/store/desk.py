"""What operators ask of a store and do to it: the protocol, and the records that it speaks in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from relay.delivery import Status
from relay.event import Event

Outcome = Literal["pending", "delivered", "dead", "discarded", "missed"]
"""Of a delivery; missed: neither delivered nor under way, or never meant for the sink at all."""

ReplayState = Literal["running", "done", "cancelled"]


REOPENED: dict[Outcome | None, frozenset[Status | None]] = {
    None: frozenset({Status.DELIVERED, Status.DEAD, Status.DISCARDED, None}),
    "missed": frozenset({Status.DEAD, Status.DISCARDED, None}),
    "delivered": frozenset({Status.DELIVERED}),
    "dead": frozenset({Status.DEAD}),
    "discarded": frozenset({Status.DISCARDED}),
    "pending": frozenset(),
}
"""Which deliveries a replay opens, by the outcome that it is for; None: there was none so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which events are meant: those that fit every field that is given."""

    id: str | None = None
    source: str | None = None
    kind: str | None = None
    """A glob, such as `video.*`."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Received before this."""
    video: str | None = None
    email: str | None = None
    """Of the lead or the viewer, whole; upper and lower case are one."""
    sink: str | None = None
    outcome: Outcome | None = None
    """Of the delivery to `sink`, else to any."""
    reason: str | None = None
    """A part of why that delivery is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """One delivery as it stands; times are milliseconds since the epoch."""

    sink: str
    status: Status
    attempts: int
    due_ms: int | None
    """Only while it is pending; None also where an earlier one of its key has to end first."""
    settled_ms: int | None
    reason: str | None
    replay: int | None
    """The replay that opened it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One event in a list."""

    seq: int
    source: str
    id: str
    kind: str
    created_at: str | None
    received_ms: int
    bytes: int | None
    """Of the body; None once its retention is over."""
    deliveries: Sequence[DeliveryRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try to deliver."""

    sink: str
    started_ms: int
    duration_ms: int
    result: str
    status: int | None
    """The far end's own code."""
    reason: str
    answer: str
    """The beginning of what the far end said."""
    replay: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known of one event."""

    event: EventRecord
    headers: bytes | None
    body: bytes | None
    attempts: Sequence[AttemptRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One delivery that was given up."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    sink: str
    attempts: int
    settled_ms: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """How many deliveries of a sink were given up for one reason."""

    sink: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A walk over stored events that makes deliveries of them anew."""

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    """Deliveries that it was for when it began."""
    opened: int
    cursor: int
    """The `seq` of the last event that it has looked at for every sink."""
    until: int
    """The `seq` of the last event there was when it began."""
    ended_ms: int | None


class Mark(NamedTuple):
    """A place in what was written: the last event, and the last attempt, of all that is older."""

    event: int
    attempt: int


class Accepted(NamedTuple):
    """An event as it was taken in; `number` goes up with each."""

    number: int
    received_ms: int
    source: str
    id: str
    kind: str
    sinks: Sequence[str]


class Attempted(NamedTuple):
    """A try to deliver, and the event that it was for; `number` goes up with each."""

    number: int
    started_ms: int
    duration_ms: int
    result: str
    status: int | None
    reason: str
    replay: int | None
    sink: str
    source: str
    id: str
    kind: str
    received_ms: int


class Wanted(NamedTuple):
    """A delivery that a replay is to make: of an event (`seq`) to a sink, with its key if any."""

    seq: int
    sink: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A stored event with its body, on its way to be delivered again."""

    seq: int
    event: Event
    standing: Mapping[str, Status]
    """Its deliveries, by sink."""


class Desk(Protocol):
    """Reads beside the deliveries, never in their way; writes share their transactions.

    All methods may raise StoreError.
    """

    async def events(
        self, selection: Selection, *, before: int | None, limit: int
    ) -> Sequence[EventRecord]:
        """The newest that fit, `before` a `seq` if one is given."""
        ...

    async def history(self, seq: int) -> History | None:
        """All that is known of one event; None for one that is not there."""
        ...

    async def dead_letters(
        self, selection: Selection, *, before: int | None, limit: int
    ) -> Sequence[DeadLetter]:
        """The newest given-up deliveries; those of the last event are all in it."""
        ...

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        """The dead letters that fit, counted by sink and reason, the most first."""
        ...

    async def discard(self, selection: Selection, *, now_ms: int) -> int:
        """Give the dead letters up for good, some at a time; returns how many.

        Where it raises, some may have been given up already.
        """
        ...

    async def mark(self, since_ms: int) -> Mark:
        """The place from which on all is younger than this."""
        ...

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        """The oldest events after this one."""
        ...

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        """The oldest attempts after this one."""
        ...

    async def choose(
        self, selection: Selection, *, after: int, until: int, limit: int
    ) -> Sequence[Chosen]:
        """The oldest events that fit and still have their body, in order of acceptance."""
        ...

    async def last(self) -> int:
        """The `seq` of the newest event, 0 for none."""
        ...

    async def begin(self, selection: Selection, *, total: int, until: int, now_ms: int) -> Replay:
        """Write down a replay."""
        ...

    async def open(
        self, replay: Replay, deliveries: Sequence[Wanted], *, cursor: int, now_ms: int
    ) -> Replay:
        """Make deliveries pending, and move the replay on, at once.

        What is pending already stays so, and what the replay's outcome does not name is let be;
        so is what this replay or a later one has opened before.
        Raises StoreFull below the floor of free space.
        """
        ...

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        """Close a replay; a cancelled one takes its pending deliveries back as they were due."""
        ...

    async def replays(self, *, limit: int) -> Sequence[Replay]:
        """The newest."""
        ...

    async def running(self) -> Sequence[Replay]:
        """Those that go on, the first begun first."""
        ...

    async def replay(self, number: int) -> Replay | None: ...

    async def under_way(self, replay: int) -> Mapping[str, int]:
        """How many deliveries that it opened are pending, by sink; a sink without any has none."""
        ...

    async def pause(self, sink: str, *, now_ms: int) -> None: ...

    async def resume(self, sink: str) -> None: ...

    async def paused(self) -> Mapping[str, int]:
        """The paused sinks, and since when."""
        ...
