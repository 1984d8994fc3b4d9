"""When the relay was away: the protocol of that part of a store, and the record it speaks in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from relay.core.downtime import Interval

Cause = Literal["stopped", "crashed", "stalled"]
"""Stopped: the relay before had closed its store. Crashed: it had not.

Stalled: the process went on, but could write nothing, because the disk was full, the machine was
suspended or the process was held up; a clock that is set forward looks the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """From one sign of life to the next; times are milliseconds since the epoch."""

    id: int
    cause: Cause
    from_ms: int
    to_ms: int
    lacks: Interval | None
    """Events first sent within it are lost; None where the sender's tries outlasted the absence."""
    acknowledged_ms: int | None
    """When an operator took note of it."""


class Absences(Protocol):
    """Signs of life, and the gaps between them; all methods may raise StoreError."""

    async def last_alive_ms(self) -> int | None:
        """The last sign of life; None in a new store."""
        ...

    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        """Leave a sign of life, and return the absence that ends with it if it is over `over_ms`.

        Raises StoreFull below the floor of free space, for then no event is accepted either.
        """
        ...

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        """The newest, `before` an id if one is given."""
        ...

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        """The oldest of those that lost events and were not acknowledged."""
        ...

    async def unacknowledged_loss_ms(self) -> int:
        """The time within all of those from which events are lost."""
        ...

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        """Take note of an absence; None for one that is not there.

        One that was acknowledged before keeps its time.
        """
        ...
