"""The one definition of a filter: which events are meant, and which of their deliveries."""

from dataclasses import dataclass
from typing import Literal

from relay.core.delivery import Status

Outcome = Literal["pending", "delivered", "dead", "discarded", "missed"]
"""Outcome of a delivery; missed: the sink's route takes the event, but its delivery is dead or
discarded, or was never made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Events that fit every field that is given.

    `sink`, `outcome` and `reason` speak of a delivery: one and the same has to fit all three.
    """

    id: str | None = None
    source: str | None = None
    kind: str | None = None
    """A glob, such as `video.*`."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Received before this."""
    before: int | None = None
    """Accepted before the event of this `seq`: where the page before has ended."""
    video: str | None = None
    email: str | None = None
    """Of the lead or the viewer, whole; upper and lower case are one."""
    sink: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    """A part of why the delivery is dead."""

    @property
    def names_deliveries(self) -> bool:
        """Whether only some deliveries of an event are meant."""
        return any(each is not None for each in (self.sink, self.outcome, self.reason))

    @property
    def status(self) -> Status | None:
        """What the deliveries meant have in common; None also for those that were missed."""
        if self.reason is not None:
            return Status.DEAD
        return None if self.outcome in (None, "missed") else Status(self.outcome)

    @property
    def contradiction(self) -> str | None:
        """Why no delivery can fit, where that is plain."""
        if self.reason is not None and self.outcome not in (None, "dead"):
            return f"reason is why a delivery is dead, so it does not apply to {self.outcome} ones"
        return None

    @property
    def reopened(self) -> frozenset[Status | None]:
        """Which deliveries a replay opens, by their status; None: there was none so far."""
        if self.outcome == "missed":
            return frozenset({Status.DEAD, Status.DISCARDED, None})
        if self.status is not None:
            return frozenset({self.status}) - {Status.PENDING}
        return frozenset({Status.DELIVERED, Status.DEAD, Status.DISCARDED, None})
