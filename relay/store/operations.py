"""What operators ask of a store and do to it: the protocol, and the records that it speaks in."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from relay.core.delivery import Status
from relay.core.routing import Route
from relay.store.overview import Overview
from relay.store.replays import Chosen, Mark, Replay, ReplayState, Wanted
from relay.store.selection import Selection


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
    is_damaged: bool
    """Whether the body is another than the one that was received."""
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


class Operations(Protocol):
    """Reads beside the deliveries, never in their way; writes share their transactions.

    All methods may raise StoreError.
    """

    async def events(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        """The newest that fit; what a sink missed is decided by its route."""
        ...

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        """Events whose ids begin so; where one is just that, no others."""
        ...

    async def history(self, seq: int) -> History | None:
        """All that is known of one event; None for one that is not there."""
        ...

    async def dead_letters(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        """The newest given-up deliveries, more than the limit where one event has several."""
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

    async def sources(self) -> Sequence[str]:
        """The sources of all stored events."""
        ...

    async def sinks(self) -> Sequence[str]:
        """The sinks of all stored deliveries; reads every one of them."""
        ...

    async def kinds(self) -> Sequence[str]:
        """The kinds of all stored events; reads every one of them."""
        ...

    async def has_kind(self, glob: str) -> bool:
        """Whether the glob fits a kind of the sender's list, or a stored one."""
        ...

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        """Discard a pending delivery; False where there is none."""
        ...

    async def choose(
        self,
        selection: Selection,
        routes: Sequence[Route],
        *,
        after: int,
        until: Mark,
        limit: int,
    ) -> Sequence[Chosen]:
        """The oldest events that fit and still have their body, in order of acceptance."""
        ...

    async def newest(self) -> Mark:
        """The place of what was written last."""
        ...

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        """Write down a replay."""
        ...

    async def open(
        self, replay: Replay, deliveries: Sequence[Wanted], *, cursor: int, now_ms: int
    ) -> Replay:
        """Make deliveries pending, and move the replay on, at once.

        What is pending already stays so, and what the replay's outcome does not name is let be;
        so is what this replay has opened before, and what has been tried since it began.
        Raises StoreFull below the floor of free space.
        """
        ...

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        """Close a replay; a cancelled one takes back what of it is not being sent.

        What is being sent then may end, but is not tried again.
        """
        ...

    async def replays(self, *, before: int | None, limit: int) -> Sequence[Replay]:
        """The newest, `before` a number if one is given."""
        ...

    async def running(self) -> Sequence[Replay]:
        """Those that go on, the first begun first."""
        ...

    async def replay(self, number: int) -> Replay | None: ...

    async def under_way(self, replay: int) -> Mapping[str, int]:
        """How many deliveries that it opened are pending, by sink; a sink without any has none."""
        ...

    async def overview(self, sinks: Collection[str]) -> Overview:
        """The figures of a verdict; `sinks` are those that have dead letters."""
        ...

    async def pause(self, sink: str, *, now_ms: int) -> None: ...

    async def resume(self, sink: str) -> None: ...

    async def paused(self) -> Mapping[str, int]:
        """The paused sinks, and since when."""
        ...
