"""Deliveries that were given up, and requests that hold no event."""

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
    """One page; what cannot be read belongs to no sink, and stands on the first page only."""

    dead_letters: Sequence[DeadLetter]
    unreadable: Sequence[UnreadableRecord]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """All dead letters that fit, by sink and reason."""

    reasons: Sequence[Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(Order):
    """Which dead letters; with `dry_run`, nothing is changed."""

    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """How many dead letters were given up for good, and by sink and reason which were to be."""

    discarded: int
    reasons: Sequence[Reason]


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of dead letters, and done to them."""

    async def list_dead_letters(page: Page) -> DeadLetters:
        selection = await selected_dead(admin, page)
        found = await admin.operations.dead_letters(selection, limit=page.limit)
        more = len(found) >= page.limit and await admin.operations.dead_letters(
            replace(selection, before=found[-1].seq), limit=1
        )
        first = selection == Selection(outcome="dead")
        unreadable = await admin.unreadable.newest(before=None, limit=page.limit) if first else ()
        return DeadLetters(
            dead_letters=found, unreadable=unreadable, next=found[-1].seq if more else None
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
            summary="Deliveries that were given up, the newest first.",
            handler=list_dead_letters,
            parameters=Page,
            answer=DeadLetters,
            problems=PROBLEMS,
        ),
        Operation(
            method="GET",
            path="/api/v1/dead-letters/reasons",
            summary="Deliveries that were given up, counted by sink and reason.",
            handler=count_dead_letters,
            parameters=Filter,
            answer=Reasons,
            problems=PROBLEMS,
        ),
        Operation(
            method="POST",
            path="/api/v1/dead-letters/discard",
            summary="Give the dead letters that fit up for good.",
            handler=discard_dead_letters,
            body=Discard,
            answer=Discarded,
            result=lambda answer: {"discarded": answer.discarded},
            problems=PROBLEMS,
        ),
    )
