"""Parameters that operations share."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from relay.store.selection import PERSON_PATTERN, Outcome, Selection

NUMBER_MAX = (1 << 53) - 1
"""Largest integer that every JSON reader keeps exactly."""

PAGE_MAX = 500

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=10_000)]
"""A time limit of a search, which holds up others."""
Text = Annotated[str, Meta(min_length=1, max_length=320)]
"""A text as long as the longest e-mail address (RFC 5321)."""
Person = Annotated[
    str,
    Meta(
        pattern=PERSON_PATTERN,
        description="The store's own digest of the address of a lead or a viewer.",
    ),
]
Words = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=320,
        pattern=r"\S",
        description="Words that are all in the body, in any order; case matters beyond ASCII.",
    ),
]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the events that match every given field.

    `sink`, `outcome` and `reason` must match the same delivery of an event.
    """

    id: Text | None = None
    id_prefix: Text | None = None
    source: Text | None = None
    kind: Text | None = None
    since_ms: Number | None = None
    until_ms: Number | None = None
    before: Number | None = None
    """The `next` of the previous page."""
    video: Text | None = None
    email: Text | None = None
    person: Person | None = None
    words: Words | None = None
    sink: Text | None = None
    outcome: Outcome | None = None
    reason: Text | None = None

    def selection(self) -> Selection:
        """Convert to a selection of the store."""
        return Selection(**{name: getattr(self, name) for name in Selection.__struct_fields__})

    def extended(self, kind: "type[F]", **more: Any) -> "F":
        """Return the filter with the further parameters of an operation."""
        return kind(**{**asdict(self), **more})


F = TypeVar("F", bound=Filter)


Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list without a filter."""

    before: Number | None = None
    limit: Limit = 50


class Page(Filter, frozen=True, kw_only=True):
    """One page of a filtered list."""

    limit: Limit = 50


class Order(Filter, frozen=True, kw_only=True):
    """A filter for a change; without any field, `all` is required."""

    all: bool = False
