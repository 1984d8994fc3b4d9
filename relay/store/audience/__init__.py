"""Protocol and records of the audience: views, milestones and leads."""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Literal, Protocol

import msgspec

from relay.store.audience.related import Related

Grouping = Literal["video", "day", "hour", "source"]


class AudienceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of views and leads, and their grouping."""

    by: Grouping
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    source: str | None = None
    video: str | None = None
    zone: tzinfo = UTC
    """Time zone of the days and hours."""
    limit: int = 1000
    """Maximum number of groups."""


class StepCount(msgspec.Struct, frozen=True):
    """Counts of one step, within a group and the selected time."""

    kind: str
    """Kind of the events that report the step."""
    milestone: str | None
    """None for leads."""
    people: int
    """Distinct people with an e-mail address."""
    events: int
    anonymous: int
    """Events without an address, which do not count as people."""


class Group(msgspec.Struct, frozen=True):
    """One video, day, hour or source with its funnel; the other fields are None."""

    steps: Sequence[StepCount]
    """All steps, in their order."""
    video: str | None = None
    """None also for events without a video."""
    title: str | None = None
    """The latest title."""
    day: str | None = None
    """As `2026-11-02`, in the requested zone."""
    hour: int | None = None
    """Hour of the day by the clocks of the requested zone, 0 to 23, over all selected days."""
    source: str | None = None


class Funnel(msgspec.Struct, frozen=True, kw_only=True):
    """The counted groups: videos and sources with the most people first, days newest first.

    All 24 hours in their order, unless nothing is selected.
    """

    groups: Sequence[Group]
    total: Sequence[StepCount]
    """Counts over all groups, with each person once, so not the sum of the groups."""
    left_out: int
    """Number of groups beyond the limit; for days 1 means one or more."""
    counted_until_ms: int | None
    """Later events may not be counted yet; None if all are."""


class Audience(Protocol):
    """Counts that outlive the events' bodies; all methods may raise StoreError."""

    async def fill(self) -> bool:
        """Count the next stored events; True if more may be left."""
        ...

    async def count(self, *, upto: int | None = None) -> bool:
        """Do as `fill`, but without the rollup, up to an event or the last one; True for more."""
        ...

    async def last_event(self) -> int:
        """Return the number of the last event, 0 if there is none."""
        ...

    def person(self, address: str) -> str:
        """Name the person with this address as `Selection.person`: a digest with the store's key.

        It is equal for all spellings of an address.
        """
        ...

    async def sources(self) -> Sequence[str]:
        """Return every source that ever had an event."""
        ...

    async def related(self, seq: int, *, limit: int) -> Related | None:
        """Return the newest events of the same person and video; None if there is no such event.

        `limit` is the maximum number of each.
        """
        ...

    async def funnel(self, question: AudienceQuery) -> Funnel:
        """Return the counts, after a bounded number of `fill` steps."""
        ...
