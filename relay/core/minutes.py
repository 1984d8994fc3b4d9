"""Lengths of time, and what a relay did in one minute: values that store, API and page share."""

import msgspec

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Minute(msgspec.Struct, frozen=True):
    """Counts of one minute; None for a count that is not known, which is not zero."""

    at_ms: int
    """Its start, in milliseconds since the epoch."""
    accepted: int | None = 0
    """New events, by their receipt."""
    delivered: int | None = 0
    """Successful attempts, by their end."""
    failed: int | None = 0
    """Other attempts, by their end."""


def minute_of(at_ms: int) -> int:
    """Return the start of the minute."""
    return at_ms - at_ms % MINUTE_MS


def starts(since_ms: int, until_ms: int) -> range:
    """Return the starts of all minutes of a time; `until_ms` is exclusive."""
    return range(minute_of(since_ms), until_ms, MINUTE_MS)
