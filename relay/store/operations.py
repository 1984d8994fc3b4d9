"""Protocol and records of operators' queries and changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from relay.core.delivery import Status
from relay.core.event import Event
from relay.core.routing import Route
from relay.store.overview import Overview
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayCandidate, ReplayState
from relay.store.rows import ORIGINAL, SUPERSEDED
from relay.store.selection import Selection


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One delivery; times are milliseconds since the epoch."""

    sink: str
    status: Status
    attempts: int
    due_ms: int | None
    """Set only while it is pending and no earlier delivery of its ordering key is."""
    settled_ms: int | None
    reason: str | None
    replay: int | None
    """The last replay that opened it."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event in a list."""

    seq: int
    source: str
    id: str
    kind: str
    created_at: str | None
    received_ms: int
    bytes: int | None
    """Size of the body; None once its retention is over."""
    deliveries: Sequence[DeliveryRecord]
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""
    superseded: bool = False
    """Reconstructed, and the original has arrived since."""

    @classmethod
    def of(cls, row: Sequence[Any], deliveries: Sequence[DeliveryRecord]) -> Self:
        """Make a record of the columns of an event, in this order."""
        seq, source, event_id, kind, created_at, received_ms, size, mark = row
        return cls(
            seq,
            source,
            event_id,
            kind,
            created_at,
            received_ms,
            size,
            deliveries,
            reconstructed=mark != ORIGINAL,
            superseded=mark == SUPERSEDED,
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt."""

    sink: str
    started_ms: int
    duration_ms: int
    result: str
    status: int | None
    """The destination's own status code."""
    reason: str
    answer: str
    """The beginning of the destination's answer."""
    replay: int | None


@dataclass(frozen=True, slots=True)
class History:
    """One event with its content and attempts."""

    event: EventRecord
    headers: bytes | None
    body: bytes | None
    is_damaged: bool
    """Whether the stored body differs from the received one."""
    attempts: Sequence[AttemptRecord]

    def intact_event(self) -> Event | None:
        """Return the event as sinks get it; None if its body is gone or damaged."""
        if self.body is None or self.is_damaged:
            return None
        return Event(
            source=self.event.source,
            id=self.event.id,
            kind=self.event.kind,
            created_at=self.event.created_at,
            received_ms=self.event.received_ms,
            body=self.body,
            headers=self.headers or b"",
            reconstructed=self.event.reconstructed,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One delivery that the relay has given up."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    sink: str
    attempts: int
    settled_ms: int | None
    reason: str | None
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A sink's dead letters with one reason."""

    sink: str
    reason: str | None
    count: int
    first_ms: int | None
    """When the first of them died."""
    last_ms: int | None


class Accepted(NamedTuple):
    """An accepted event; `number` increases with each."""

    number: int
    received_ms: int
    source: str
    id: str
    kind: str
    sinks: Sequence[str]
    reconstructed: bool = False


class Attempted(NamedTuple):
    """An attempt with its event; `number` increases with each."""

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


GoesOn = Callable[[int], bool]
"""Called after each step with the number so far; the change ends at False."""


def always(_: int) -> bool:
    """Go on whatever the number."""
    return True


class Operations(Protocol):
    """Operators' reads, which do not delay deliveries, and writes, which share their transactions.

    All methods may raise StoreError.
    """

    async def events(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        """Return the newest selected events; `routes` decide which events a sink has missed."""
        ...

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        """Return the events with this id, else those whose ids begin with it."""
        ...

    async def history(self, seq: int) -> History | None:
        """Return one event in full; None if it does not exist."""
        ...

    async def dead_letters(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        """Return the newest dead letters, above the limit if the last event has several."""
        ...

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        """Count the selected dead letters by sink and reason, highest count first."""
        ...

    async def discard(self, selection: Selection, *, now_ms: int, goes_on: GoesOn = always) -> int:
        """Discard the selected dead letters in steps; return their number.

        If it raises, some may be discarded already.
        """
        ...

    async def mark(self, since_ms: int) -> Mark:
        """Return the mark after which everything is newer than this."""
        ...

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        """Return the oldest events after this one."""
        ...

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        """Return the oldest attempts after this one."""
        ...

    async def sources(self) -> Sequence[str]:
        """Return the sources of all stored events."""
        ...

    async def sinks(self) -> Sequence[str]:
        """Return the sinks of all stored deliveries, by a full scan."""
        ...

    async def kinds(self) -> Sequence[str]:
        """Return the kinds of all stored events, by a full scan."""
        ...

    async def has_kind(self, glob: str) -> bool:
        """Whether the glob matches a known or a stored kind."""
        ...

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        """Discard a pending delivery; False if there is none."""
        ...

    async def choose(
        self,
        selection: Selection,
        routes: Sequence[Route],
        *,
        after: int,
        until: Mark,
        limit: int,
    ) -> Sequence[ReplayCandidate]:
        """Return the oldest selected events that still have their body, in order of acceptance."""
        ...

    async def newest(self) -> Mark:
        """Return the mark of the newest event and attempt."""
        ...

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        """Store a new replay."""
        ...

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        """Make deliveries pending and advance the replay, in one transaction.

        Deliveries stay as they are if they are pending, not selected by their outcome, opened by
        this replay before, or tried since it started.
        Raises StoreFull below the floor of free space.
        """
        ...

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        """End a replay; cancelling takes back its deliveries that are not in flight.

        Those in flight may end, but are not tried again.
        """
        ...

    async def replays(self, *, before: int | None, limit: int) -> Sequence[Replay]:
        """Return the newest replays, those before a number if one is given."""
        ...

    async def running(self) -> Sequence[Replay]:
        """Return the running replays, oldest first."""
        ...

    async def replay(self, number: int) -> Replay | None: ...

    async def under_way(self, replay: int) -> Mapping[str, int]:
        """Count the pending deliveries of a replay by sink, without sinks that have none."""
        ...

    async def overview(self, sinks: Collection[str]) -> Overview:
        """Return figures for the verdict; `sinks` are those with dead letters."""
        ...

    async def pause(self, sink: str, *, now_ms: int) -> None: ...

    async def resume(self, sink: str) -> None: ...

    async def retry(self, sink: str) -> None:
        """Have the relay try the sink at once that dispatches it, where that is another one."""
        ...

    async def paused(self) -> Mapping[str, int]:
        """Return the paused sinks with the times of their pauses."""
        ...
