"""Selections from the filters of requests; refuses a filter that cannot select anything."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Filter, Order
from relay.admin.services import AdminServices
from relay.core.event import KINDS
from relay.core.setting_errors import suggestion
from relay.store.selection import Selection

NAMED_MAX = 20
"""Names that an error lists; a sender may use any number of kinds."""

PROBLEMS = {
    404: "The source, sink or kind is unknown; the detail lists the known ones.",
    422: "The filter does not apply here, or is missing without `all`.",
}


async def selected(admin: AdminServices, chosen: Filter) -> Selection:
    """Convert a filter; raises HTTPException."""
    selection = chosen.selection()
    if (contradiction := selection.contradiction) is not None:
        raise HTTPException(422, f"{contradiction[0].upper()}{contradiction[1:]}.")
    events, sinks = admin.store.events, [route.sink for route in admin.routes]
    await require_known("source", selection.source, admin.rotations.sources, events.sources)
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


def require_one(order: Order) -> None:
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
