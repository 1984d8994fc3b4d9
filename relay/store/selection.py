"""Filters on events and their deliveries, and what their conditions in SQL are made of."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any, ClassVar, Literal

import msgspec
from msgspec.structs import asdict

from relay.core.delivery import Status
from relay.core.foreign_json import REPLACEMENT
from relay.core.routing import Route
from relay.store.sql import ALL, NONE, Condition, all_of, any_of, by_name

Outcome = Literal["pending", "delivered", "dead", "discarded", "missed"]
"""Outcome of a delivery; missed: the sink's route takes the event, but its delivery is dead or
discarded, or was never made."""

PERSON_PATTERN = "^[0-7][0-9a-f]{15}$"
"""A person is named by 63 bits."""
_PERSON = re.compile(PERSON_PATTERN)
_SURROGATE = re.compile("[\ud800-\udfff]")

LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Translates ASCII letters, as the engines do."""

Order = Literal["ASC", "DESC"]

OF_EVENT = {
    "source": "e.source = :source",
    "since_ms": "e.received_at >= :since_ms",
    "until_ms": "e.received_at < :until_ms",
    "before": "e.seq < :before",
}
OF_DELIVERY = {
    "sink": "d.sink = :sink",
    "outcome": "d.status = :outcome",
    "reason": "instr(d.reason, :reason) > 0",
}
"""Conditions by the values that they are for."""


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


class Conditions(ABC):
    """Selections as conditions on `events e` and their `deliveries d`: the same in each query."""

    escapes: ClassVar[str]
    """Whether the body has an escape, which may hide a text that it contains."""
    parsed: ClassVar[Mapping[str, str]]
    """Whether a value of the body is the wanted one, by field of the selection."""

    @abstractmethod
    def contains(self, name: str, text: str) -> Condition:
        """Return the condition on the body to contain a text, case-insensitively in ASCII.

        Its value is to have this name.
        """

    @abstractmethod
    def own(self, db: Any, selection: Selection) -> Iterable[Condition]:
        """Return the conditions by id, kind and person.

        `db` is a connection of the engine.
        """

    @abstractmethod
    def missed(
        self, db: Any, routes: Mapping[str, Route], fits: Condition, order: Order, limit: int | None
    ) -> Condition:
        """Return the condition to be one of the first events that fit and that sinks have missed.

        `routes` are those of the sinks.
        """

    def of_event(self, db: Any, selection: Selection) -> Condition:
        """Return the condition on `events e` that does not concern deliveries."""
        return all_of(
            *self.own(db, selection),
            by_name(OF_EVENT, asdict(selection)),
            self._is("video", selection.video),
            self._is("email", selection.email and selection.email.translate(LOWER)),
            self._has_words(selection.words),
        )

    def fits(
        self,
        db: Any,
        selection: Selection,
        routes: Sequence[Route],
        *more: Condition,
        order: Order = "DESC",
        limit: int | None = None,
    ) -> Condition:
        """Return the condition on `events e` to be one of the first that fit, by `seq`.

        `routes` decide which events a sink has missed.
        """
        fits = all_of(self.of_event(db, selection), *more)
        if selection.outcome == "missed":
            asked = {each.sink: each for each in routes if selection.sink in (None, each.sink)}
            return self.missed(db, asked, fits, order, limit) if asked else NONE
        if not selection.names_deliveries:
            return fits
        sql, values = of_delivery(selection)
        exists = f"EXISTS (SELECT 1 FROM main.deliveries AS d WHERE d.event = e.seq AND {sql})"
        return all_of(fits, Condition(exists, values))

    def _is(self, name: str, value: str | None) -> Condition:
        """Parse a body only if it contains the value, or an escape that may hide it."""
        if value is None:
            return ALL
        contains, values = self.contains(f"{name}_in", value)
        sql = f"CASE WHEN {contains} OR {self.escapes} THEN {self.parsed[name]} END"
        return Condition(sql, {name: value, **values})

    def _has_words(self, text: str | None) -> Condition:
        if text is None:
            return ALL
        words = [
            [self.contains(f"word{number}_{form}", each) for form, each in enumerate(forms)]
            for number, forms in enumerate(word_forms(text))
        ]
        return all_of(*map(any_of, words)) if words else NONE


def of_delivery(selection: Selection) -> Condition:
    """Return the condition on existing `deliveries d`."""
    return by_name(OF_DELIVERY, {**asdict(selection), "outcome": selection.status})


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
