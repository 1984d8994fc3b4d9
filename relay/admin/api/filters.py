"""What the filter of a request selects; one that cannot select anything is refused in words."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Filter, Order
from relay.admin.services import AdminServices
from relay.core.event import KINDS
from relay.store.selection import Selection

NAMED_MAX = 20
"""Names that a refusal lists; a sender may have made up any number of kinds."""

PROBLEMS = {
    404: "The filter names a source, a sink or a kind that neither the config nor the store knows.",
    422: "The filter cannot apply here, or there is none and `all` is not said.",
}


async def selected(admin: AdminServices, chosen: Filter) -> Selection:
    """The selection that a filter means; raises HTTPException."""
    selection = chosen.selection()
    if (why := selection.contradiction) is not None:
        raise HTTPException(422, f"{why[0].upper()}{why[1:]}.")
    operations, sinks = admin.operations, [route.sink for route in admin.routes()]
    await require_known("source", selection.source, admin.rotations.sources, operations.sources)
    await require_known("sink", selection.sink, sinks, operations.sinks)
    kind = selection.kind
    if kind is not None and not await operations.has_kind(kind):
        known = (*KINDS, *(each for each in await operations.kinds() if each not in KINDS))
        raise HTTPException(404, _unknown("kind of event", kind, known))
    return selection


async def selected_dead(admin: AdminServices, chosen: Filter) -> Selection:
    """The same for dead letters; raises HTTPException."""
    selection = await selected(admin, chosen)
    if selection.outcome not in (None, "dead"):
        raise HTTPException(422, f"A dead letter is dead, so outcome cannot be {chosen.outcome}.")
    return replace(selection, outcome="dead")


def require_one(order: Order) -> None:
    """Raise HTTPException for an order that says neither which nor all."""
    if not order.all and order.selection() == Selection():
        raise HTTPException(422, 'Say which, such as "sink" or "id", or "all": true.')


async def require_known(
    what: str,
    name: str | None,
    configured: Sequence[str],
    stored: Callable[[], Awaitable[Sequence[str]]],
) -> None:
    """Raise HTTPException for a name that neither the config nor the store knows."""
    if name is None or name in configured:
        return
    known = await stored()
    if name not in known:
        raise HTTPException(404, _unknown(what, name, sorted({*configured, *known})))


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]}?" if near else "."
    more = ", ..." if len(known) > NAMED_MAX else ""
    there_are = ", ".join(known[:NAMED_MAX]) or "none"
    return (
        f"Neither the config nor the store knows a {what} {name}{guess} Known: {there_are}{more}."
    )
