"""Definition of a filter on events and their deliveries."""

import re
from typing import Literal

import msgspec

from relay.core.delivery import Status

Outcome = Literal["pending", "delivered", "dead", "discarded", "missed"]
"""Outcome of a delivery; missed: the sink's route takes the event, but its delivery is dead or
discarded, or was never made."""

PERSON_PATTERN = "^[0-7][0-9a-f]{15}$"
"""A person is named by 63 bits."""
_PERSON = re.compile(PERSON_PATTERN)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Events that match every given field.

    `sink`, `outcome` and `reason` must match the same delivery.
    """

    id: str | None = None
    """Only events with this id."""
    id_prefix: str | None = None
    """Only events whose id begins with this."""
    source: str | None = None
    """Only events of this source."""
    kind: str | None = None
    """Only events of the kinds that this glob matches, such as `video.*`."""
    since_ms: int | None = None
    """Only events received at this time or later."""
    until_ms: int | None = None
    """Only events received before this time."""
    before: int | None = None
    """Only events before this one, the last of the previous page, by `seq`."""
    video: str | None = None
    """Only events of this video."""
    email: str | None = None
    """Only events of the lead or viewer with this whole address, case-insensitive."""
    person: str | None = None
    """Only events of the lead or viewer with this digest of the address (`Audience.person`).

    It also selects events whose body has expired.
    """
    words: str | None = None
    """Only events whose body has all of these words, case-insensitive in ASCII."""
    sink: str | None = None
    """Only events with a delivery to this sink."""
    outcome: Outcome | None = None
    """Only events with this outcome at a sink."""
    reason: str | None = None
    """Only events with a dead letter whose reason contains this."""

    @property
    def person_number(self) -> int | None:
        """Number of the person in the audience; -1 for a text that names nobody."""
        if self.person is None:
            return None
        return int(self.person, 16) if _PERSON.fullmatch(self.person) else -1

    @property
    def names_deliveries(self) -> bool:
        """Whether the selection is by delivery."""
        return any(each is not None for each in (self.sink, self.outcome, self.reason))

    @property
    def status(self) -> Status | None:
        """Common status of the selected deliveries; None also for missed ones."""
        if self.reason is not None:
            return Status.DEAD
        return None if self.outcome in (None, "missed") else Status(self.outcome)

    @property
    def contradiction(self) -> str | None:
        """Reason why no delivery can match, if the fields contradict each other."""
        if self.reason is not None and self.outcome not in (None, "dead"):
            return f"reason applies to dead deliveries, not to {self.outcome} ones; choose one"
        return None

    @property
    def reopened(self) -> frozenset[Status | None]:
        """Statuses of the deliveries that a replay opens; None for a new delivery."""
        if self.outcome == "missed":
            return frozenset({Status.DEAD, Status.DISCARDED, None})
        if self.status is not None:
            return frozenset({self.status}) - {Status.PENDING}
        return frozenset({Status.DELIVERED, Status.DEAD, Status.DISCARDED, None})
