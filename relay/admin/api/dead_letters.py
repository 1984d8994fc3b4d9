"""Dead letters: deliveries that the relay has given up."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from relay.admin.api.parameters import (
    PROBLEMS,
    EventOrder,
    Filter,
    PageQuery,
    require_one,
    selected_dead,
)
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.store.dead_letters import DeadLetter, GoesOn, Reason, always
from relay.store.selection import Selection
from relay.store.unreadable import UnreadableRecord, UnreadableSelection


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page; unreadable requests belong to no sink, and are on the first page only."""

    dead_letters: Sequence[DeadLetter]
    unreadable: Sequence[UnreadableRecord]
    next: int | None


class Reasons(msgspec.Struct, frozen=True, kw_only=True):
    """Selected dead letters, counted by sink and reason; times are those at which they died."""

    reasons: Sequence[Reason]


class Discard(EventOrder, frozen=True, kw_only=True):
    """Selects dead letters; `dry_run` only counts them."""

    dry_run: bool = False


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """Number of discarded dead letters, and the selection by sink and reason."""

    discarded: int
    reasons: Sequence[Reason]


async def list_dead_letters(admin: AdminServices, page: PageQuery) -> DeadLetterPage:
    """Dead letters, newest first."""
    selection = await selected_dead(admin, page)
    dead = await admin.store.dead_letters.newest(selection, limit=page.limit)
    more = len(dead) >= page.limit and await admin.store.dead_letters.newest(
        replace(selection, before=dead[-1].seq), limit=1
    )
    unreadable: Sequence[UnreadableRecord] = ()
    if selection == Selection(outcome="dead"):
        unreadable = await admin.store.unreadable.newest(UnreadableSelection(), limit=page.limit)
    return DeadLetterPage(
        dead_letters=dead, unreadable=unreadable, next=dead[-1].seq if more else None
    )


async def count_dead_letters(admin: AdminServices, chosen: Filter) -> Reasons:
    """Dead letters, counted by sink and reason."""
    selection = await selected_dead(admin, chosen)
    return Reasons(reasons=await admin.store.dead_letters.reasons(selection))


async def discard_dead_letters(
    admin: AdminServices, _: Nothing, order: Discard, *, goes_on: GoesOn = always
) -> Discarded:
    """Discard the selected dead letters."""
    require_one(order)
    selection = await selected_dead(admin, order)
    dead_letters, discarded = admin.store.dead_letters, 0
    reasons = await dead_letters.reasons(selection)
    if not order.dry_run:
        now_ms = admin.clock.now_ms()
        discarded = await dead_letters.discard(selection, now_ms=now_ms, goes_on=goes_on)
    return Discarded(discarded=discarded, reasons=reasons)


OPERATIONS = (
    Operation("GET", "/api/v1/dead-letters", list_dead_letters, PROBLEMS),
    Operation("GET", "/api/v1/dead-letters/reasons", count_dead_letters, PROBLEMS),
    Operation(
        "POST",
        "/api/v1/dead-letters/discard",
        discard_dead_letters,
        PROBLEMS,
        result=lambda response: {"discarded": response.discarded},
    ),
)
