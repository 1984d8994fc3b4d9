"""Protocol of operators' queries and changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from relay.core.routing import Route
from relay.store.overview import Overview
from relay.store.records import (
    Accepted,
    Attempted,
    DeadLetter,
    EventRecord,
    History,
    Queued,
    Reason,
)
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayCandidate, ReplayState
from relay.store.selection import Selection

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

    async def queued(self, seq: int) -> Sequence[Queued]:
        """Count what is ahead of each pending delivery of an event, up to a limit."""
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
