"""Protocol and records of figures that are counted from stored events and attempts."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from relay.core.delivery import Result
from relay.core.minutes import Minute

DURATIONS_MS = (10, 100, 1000, 10_000)
"""Exclusive upper bounds of the durations that are counted apart; longer ones are the rest."""

FAILURES_MAX = 10


class ResultCount(msgspec.Struct, frozen=True):
    """Attempts with one result."""

    result: Result
    count: int
    durations: Sequence[int]
    """Counts by duration: one for each of `DURATIONS_MS`, then of the longer ones."""


class FailureCount(msgspec.Struct, frozen=True):
    """Attempts that failed for one reason; times are their ends."""

    status: int | None
    reason: str
    count: int
    first_ms: int
    last_ms: int


class AttemptSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one sink that ended since a time, as far as they were read."""

    results: Sequence[ResultCount]
    """Results that occurred, the most frequent first."""
    failures: Sequence[FailureCount]
    """The most frequent reasons of attempts that did not deliver, at most `FAILURES_MAX`."""
    other_failures: int
    """Attempts that failed for further reasons."""
    complete: bool
    """False if reading took too long; the newest attempts are read first."""
    looked_to_ms: int
    """Earlier attempts are not counted."""


class Statistics(Protocol):
    """Counts of bounded cost; all methods may raise StoreError."""

    async def keep_up(self) -> None:
        """Count what has come since the last look, so that the next one is quick."""
        ...

    async def last_minute(self) -> int:
        """Count the new events of the last minute."""
        ...

    async def minutes(self, since_ms: int, until_ms: int) -> Sequence[Minute]:
        """Count by minute, from the minute of `since_ms` on; `until_ms` is exclusive.

        Minutes that could not be counted in time have None.
        """
        ...

    async def attempts(self, sink: str, since_ms: int) -> AttemptSummary:
        """Summarize the attempts of a sink."""
        ...
