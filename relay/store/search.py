"""Protocol and records of searches that end in time."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from relay.core.routing import Route
from relay.store.records import EventRecord
from relay.store.selection import Selection


class EventPage(msgspec.Struct, frozen=True):
    """One page of the selected events, newest first."""

    events: Sequence[EventRecord]
    next: int | None
    """`before` of the next page; None at the end."""
    looked_to_ms: int | None
    """Receipt of the oldest event looked at if the time ran out; `next` goes on from there."""


class Count(msgspec.Struct, frozen=True):
    """A number of events; more than that if it is not complete."""

    events: int
    complete: bool
    looked_to_ms: int | None
    """Receipt of the oldest event looked at if the time ran out."""


class Search(Protocol):
    """Searches that look back from the newest event for as long as they may.

    Each looks at some events at least, also when its time is 0, so that repeating it gets to the
    end. Searches that run at once take turns, and may raise StoreError.
    """

    async def find(
        self, selection: Selection, routes: Sequence[Route], *, limit: int, budget_s: float
    ) -> EventPage:
        """Return the newest selected events; `routes` decide which events a sink has missed."""
        ...

    async def count(
        self, selection: Selection, routes: Sequence[Route], *, budget_s: float
    ) -> Count:
        """Count the selected events."""
        ...
