"""Filters on events and their deliveries, and what their conditions in SQL are made of."""

import json
import re
from typing import Any, Literal

import msgspec

from relay.core.delivery import Status
from relay.core.foreign_json import REPLACEMENT

Outcome = Literal["pending", "delivered", "dead", "discarded", "missed"]
"""Outcome of a delivery; missed: the sink's route takes the event, but its delivery is dead or
discarded, or was never made."""

PERSON_PATTERN = "^[0-7][0-9a-f]{15}$"
"""A person is named by 63 bits."""
_PERSON = re.compile(PERSON_PATTERN)
_SURROGATE = re.compile("[\ud800-\udfff]")

Condition = tuple[str, list[Any]]
"""An SQL expression and its values; a None among them leaves it out."""

ALL = "TRUE"
"""The condition that everything fits."""


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


def all_of(*conditions: Condition) -> Condition:
    """Join the conditions that have all of their values."""
    used = [condition for condition in conditions if None not in condition[1]]
    sql = " AND ".join(sql for sql, _ in used) or ALL
    return sql, [value for _, values in used for value in values]


def word_forms(text: str) -> list[tuple[str, ...]]:
    """Return the forms of each word: as it is, and as JSON may escape it.

    A replacement is shown for half of a character, whichever it is, so that it fits anything.
    """
    words = text.replace(REPLACEMENT, " ").split()
    return [_forms(word) for word in dict.fromkeys(words)]


def _forms(word: str) -> tuple[str, ...]:
    escaped = json.dumps(word)[1:-1]
    return tuple(dict.fromkeys((word, escaped))) if _is_plain(word) else (escaped,)


def _is_plain(word: str) -> bool:
    """False for a lone surrogate, which UTF-8 cannot hold, and NUL, which JSON has to escape."""
    return "\0" not in word and not _SURROGATE.search(word)
