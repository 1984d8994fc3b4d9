"""The figures that a verdict on the relay needs of the store, beside its backlogs."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The dead letters of one sink."""

    since_ms: int | None
    """When that of the oldest event was given up."""
    reason: str | None
    """Why that of the newest event was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Times are milliseconds since the epoch."""

    alive_ms: int | None
    """The last heartbeat that was written."""
    replaying_ms: Mapping[str, int]
    """By sink, when the oldest replay began that deliveries are pending of."""
    dead: Mapping[str, DeadLetters]
    unreadable: int
    """Verified requests without an event."""
    unreadable_ms: int | None
    """When the last of these came."""
