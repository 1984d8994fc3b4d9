"""Parameters that operations share, and selections from filters that can select something."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace
from starlette.exceptions import HTTPException

from relay.admin.services import AdminServices
from relay.core.event import KINDS
from relay.core.setting_errors import suggestion
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

NAMED_MAX = 20
"""Names that an error lists; a sender may use any number of kinds."""

PROBLEMS = {
    404: "The source, sink or kind is unknown; the detail lists the known ones.",
    422: "The filter does not apply here, or is missing without `all`.",
}


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


class PageQuery(Filter, frozen=True, kw_only=True):
    """One page of a filtered list."""

    limit: Limit = 50


class EventOrder(Filter, frozen=True, kw_only=True):
    """A filter for a change; without any field, `all` is required."""

    all: bool = False


async def selected(admin: AdminServices, chosen: Filter) -> Selection:
    """Convert a filter; raises HTTPException."""
    selection = chosen.selection()
    if (contradiction := selection.contradiction) is not None:
        raise HTTPException(422, f"{contradiction[0].upper()}{contradiction[1:]}.")
    events, sinks = admin.store.events, [route.sink for route in admin.routes]
    await require_known("source", selection.source, admin.sources, events.sources)
    await require_known("sink", selection.sink, sinks, events.sinks)
    kind = selection.kind
    if kind is not None and not await events.has_kind(kind):
        known = (*KINDS, *(each for each in await events.kinds() if each not in KINDS))
        raise unknown("kind of event", kind, known)
    return selection


async def selected_dead(admin: AdminServices, chosen: Filter) -> Selection:
    """Convert a filter for dead letters; raises HTTPException."""
    selection = await selected(admin, chosen)
    if selection.outcome not in (None, "dead"):
        raise HTTPException(
            422, f"outcome {chosen.outcome} does not apply to dead letters; drop it."
        )
    return replace(selection, outcome="dead")


def require_one(order: EventOrder) -> None:
    """Raise HTTPException for an order without a filter and without `all`."""
    if not order.all and order.selection() == Selection():
        raise nothing_selected("sink", "id")


def nothing_selected(*examples: str) -> HTTPException:
    """Return the error for a change without a filter; `examples` are names of filters."""
    names = " or ".join(f'"{name}"' for name in examples)
    return HTTPException(422, f'No filter is given; add one such as {names}, or "all": true.')


async def require_known(
    what: str,
    name: str | None,
    configured: Sequence[str],
    stored: Callable[[], Awaitable[Sequence[str]]],
) -> None:
    """Raise HTTPException for a name that is neither in the config nor in the store."""
    if name is None or name in configured:
        return
    known = await stored()
    if name not in known:
        raise unknown(what, name, sorted({*configured, *known}))


def unknown(what: str, name: str, known: Sequence[str]) -> HTTPException:
    """Return the error for a mistyped name."""
    guess = suggestion(name, known) or "."
    names = ", ".join(known[:NAMED_MAX]) or "none"
    more = ", ..." if len(known) > NAMED_MAX else ""
    return HTTPException(404, f"Unknown {what} {name}{guess} Known: {names}{more}.")
