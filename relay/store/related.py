"""Records of the events that concern the same person or the same video as another event."""

from collections.abc import Sequence
from dataclasses import dataclass

TOTAL_MAX = 1000

NEWEST_MAX = 200_000
"""Newest events among which related ones are found."""


@dataclass(frozen=True, slots=True)
class RelatedEvent:
    """One view or lead whose event is still stored."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    milestone: str | None
    """None for leads."""
    video: str | None
    title: str | None
    """The video's latest title."""
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


@dataclass(frozen=True, slots=True)
class RelatedEvents:
    """Events with one value in common, without the event that was asked about."""

    name: str
    """Id of the video, or keyed digest of the person's address, as 16 hex digits."""
    events: Sequence[RelatedEvent]
    """Newest first."""
    total: int
    """Number of views and leads among the newest events; one above `TOTAL_MAX` for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """Views and leads of the same person and of the same video."""

    person: RelatedEvents | None
    """None for an event without an address, or whose body and person were removed."""
    video: RelatedEvents | None
    title: str | None
    """The video's latest title."""
