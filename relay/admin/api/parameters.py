"""Values that several operations take."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from relay.store.selection import Outcome, Selection

NUMBER_MAX = (1 << 53) - 1
"""The largest whole number that every JSON reader keeps exactly."""

PAGE_MAX = 500

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Text = Annotated[str, Meta(min_length=1, max_length=320)]
"""Long enough for an e-mail address (RFC 5321)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events are meant: those that fit every field that is given.

    One delivery of an event has to fit `sink`, `outcome` and `reason`.
    """

    id: Text | None = None
    source: Text | None = None
    kind: Text | None = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    before: Number | None = None
    """The `next` of the page before."""
    video: Text | None = None
    email: Text | None = None
    sink: Text | None = None
    outcome: Outcome | None = None
    reason: Text | None = None

    def selection(self) -> Selection:
        """The same for the store."""
        return Selection(**{name: getattr(self, name) for name in Selection.__dataclass_fields__})


Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """How far and how much of a list without a filter."""

    before: Number | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Filter):
    """A filter, and how much of what fits it."""

    limit: Limit = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Filter):
    """A filter for something to be done; without one, `all` has to be said."""

    all: bool = False
