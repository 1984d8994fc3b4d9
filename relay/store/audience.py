"""Who watched how much of which video, and left an address: the protocol, and its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Literal, Protocol

Grouping = Literal["video", "day", "source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A selection of views and leads, and their grouping."""

    by: Grouping
    since_ms: int | None = None
    until_ms: int | None = None
    """Received before this."""
    source: str | None = None
    video: str | None = None
    zone: tzinfo = UTC
    """In which a day begins and ends."""
    limit: int = 1000
    """Groups at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How many reached one step; the numbers are those of its group and of the time asked about."""

    kind: str
    """Of the events that tell of the step."""
    milestone: str | None
    """None for leads."""
    people: int
    """Those with an e-mail address, once each."""
    events: int
    anonymous: int
    """Events without an address, which are in no count of people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One video, day or source with its funnel; what it is not grouped by is None."""

    video: str | None
    """None also for events that name no video."""
    title: str | None
    """The last one that was seen."""
    day: str | None
    """As `2026-11-02`, in the zone that was asked for."""
    source: str | None
    steps: Sequence[Reached]
    """All of them, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """An answer: videos and sources with the most people first, days newest first."""

    groups: Sequence[Group]
    total: Sequence[Reached]
    """Over all groups, also those beyond the limit, people once each: not the sum of the groups."""
    left_out: int
    """Groups beyond the limit; for days 1 stands for one or more."""
    counted_until_ms: int | None
    """Events that were received later may not be counted yet; None where all are."""


class Audience(Protocol):
    """Counts that outlive the events' bodies; all methods may raise StoreError."""

    async def fill(self) -> bool:
        """Count some more of the stored events; whether more may be left."""
        ...

    async def sources(self) -> Sequence[str]:
        """Every source that ever had an event."""
        ...

    async def funnel(self, question: Question) -> Funnel:
        """Answer, after a bounded number of steps of `fill`."""
        ...
