"""Protocol and record of the relay's absences."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from relay.core.downtime import Interval

Cause = Literal["stopped", "crashed", "stalled"]
"""Stopped: the previous process closed its store. Crashed: it did not.

Stalled: the process ran but could not write, because the disk was full, the machine was suspended
or the process was blocked; a clock that is set forward looks the same.
"""


LOSSLESS_MAX = 1000
"""Stored absences without a loss, so that frequent restarts do not fill the store."""


class Absence(msgspec.Struct, frozen=True):
    """A gap between two heartbeats; times are milliseconds since the epoch."""

    id: int
    cause: Cause
    from_ms: int
    to_ms: int
    lacks: Interval | None
    """Events first sent within it are lost; None if the sender's retries outlasted the absence."""
    acknowledged_ms: int | None
    """Time of an operator's acknowledgement."""


def absence_of(row: Sequence[Any]) -> Absence:
    """Make an absence from a row, whose last times are the end of the loss and the note of it."""
    number, cause, from_ms, to_ms, lost_until_ms, acknowledged_ms = row
    lacks = None if lost_until_ms is None else Interval(from_ms=from_ms, to_ms=lost_until_ms)
    return Absence(number, cause, from_ms, to_ms, lacks, acknowledged_ms)


class Absences(Protocol):
    """Heartbeats, and the gaps between them; all methods may raise StoreError."""

    async def last_alive_ms(self) -> int | None:
        """Return the time of the last heartbeat.

        None in a new store, and while other relays use it, whose heartbeats they are.
        """
        ...

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        """Store a heartbeat, and return the absence that it ends, if longer than `over_ms`.

        Raises StoreFull below the floor of free space, because then no event is accepted either.
        """
        ...

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        """Return the newest absences, those before an id if one is given."""
        ...

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        """Return the oldest absences that lost events and are not acknowledged."""
        ...

    async def unacknowledged_loss_ms(self) -> int:
        """Return the total time whose events are lost, over the unacknowledged absences."""
        ...

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        """Acknowledge an absence; None if it does not exist.

        An absence that is already acknowledged keeps its time.
        """
        ...
