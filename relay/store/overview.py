"""Figures of the store for the verdict, besides the backlogs."""

from collections.abc import Mapping

import msgspec


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead letters of one sink."""

    since_ms: int | None
    """Time of the first death: the earliest `first_ms` of the sink's `Reason`s."""
    reason: str | None
    """Reason of the last death."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All figures; times are milliseconds since the epoch."""

    alive_ms: int | None
    """Time of the last stored heartbeat."""
    replaying_ms: Mapping[str, int]
    """Start of the oldest replay with pending deliveries, by sink."""
    dead: Mapping[str, DeadLetters]
    unreadable: int
    """Number of verified requests without an event."""
    unreadable_since_ms: int | None
    """Time of the first of these."""
    unreadable_ms: int | None
    """Time of the last of these."""
