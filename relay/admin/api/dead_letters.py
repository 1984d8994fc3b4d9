"""Dead letters: deliveries that the relay has given up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.admin.api.filters import PROBLEMS, require_one, selected_dead
from relay.admin.api.parameters import Filter, Order, Page
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.operations import DeadLetter, Reason
from relay.store.selection import Selection
from relay.store.unreadable import UnreadableRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """One page; unreadable requests belong to no sink, and are on the first page only."""

    dead_letters: Sequence[DeadLetter]
    unreadable: Sequence[UnreadableRecord]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Selected dead letters, counted by sink and reason."""

    reasons: Sequence[Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(Order):
    """Selects dead letters; `dry_run` only counts them."""

    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Number of discarded dead letters, and the selection by sink and reason."""

    discarded: int
    reasons: Sequence[Reason]


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on dead letters."""

    async def list_dead_letters(page: Page) -> DeadLetters:
        selection = await selected_dead(admin, page)
        dead = await admin.operations.dead_letters(selection, limit=page.limit)
        more = len(dead) >= page.limit and await admin.operations.dead_letters(
            replace(selection, before=dead[-1].seq), limit=1
        )
        unfiltered = selection == Selection(outcome="dead")
        unreadable = (
            await admin.unreadable.newest(before=None, limit=page.limit) if unfiltered else ()
        )
        return DeadLetters(
            dead_letters=dead, unreadable=unreadable, next=dead[-1].seq if more else None
        )

    async def count_dead_letters(chosen: Filter) -> Reasons:
        return Reasons(reasons=await admin.operations.reasons(await selected_dead(admin, chosen)))

    async def discard_dead_letters(_: object, order: Discard) -> Discarded:
        require_one(order)
        selection = await selected_dead(admin, order)
        reasons = await admin.operations.reasons(selection)
        if order.dry_run:
            return Discarded(discarded=0, reasons=reasons)
        discarded = await admin.operations.discard(selection, now_ms=admin.clock.now_ms())
        return Discarded(discarded=discarded, reasons=reasons)

    return (
        Operation(
            method="GET",
            path="/api/v1/dead-letters",
            summary="Dead letters, newest first.",
            handler=list_dead_letters,
            parameters=Page,
            response=DeadLetters,
            problems=PROBLEMS,
        ),
        Operation(
            method="GET",
            path="/api/v1/dead-letters/reasons",
            summary="Dead letters, counted by sink and reason.",
            handler=count_dead_letters,
            parameters=Filter,
            response=Reasons,
            problems=PROBLEMS,
        ),
        Operation(
            method="POST",
            path="/api/v1/dead-letters/discard",
            summary="Discard the selected dead letters.",
            handler=discard_dead_letters,
            body=Discard,
            response=Discarded,
            result=lambda response: {"discarded": response.discarded},
            problems=PROBLEMS,
        ),
    )
