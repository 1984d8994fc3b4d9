"""Records of the events that concern the same person or the same video as another event."""

from collections.abc import Sequence

import msgspec

TOTAL_MAX = 1000

NEWEST_MAX = 200_000
"""Newest events among which related ones are found."""


class RelatedEvent(msgspec.Struct, frozen=True):
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


class RelatedEvents(msgspec.Struct, frozen=True):
    """Events with one value in common, without the event that was asked about."""

    name: str
    """Id of the video, or keyed digest of the person's address, as 16 hex digits."""
    events: Sequence[RelatedEvent]
    """Newest first."""
    total: int
    """Number of views and leads among the newest events; one above `TOTAL_MAX` for more."""


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """Views and leads of the same person and of the same video."""

    person: RelatedEvents | None
    """None for an event without an address, or whose body and person were removed."""
    video: RelatedEvents | None
    title: str | None
    """The video's latest title."""
