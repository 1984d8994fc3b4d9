"""Deliveries that were given up, and requests that hold no event."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.admin.api.values import Filter, Page
from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.store.desk import DeadLetter, Reason
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
class Discarded:
    """How many dead letters were given up for good."""

    discarded: int


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be asked of dead letters, and done to them."""

    async def list_dead_letters(page: Page) -> DeadLetters:
        found = await admin.desk.dead_letters(
            page.selection(), before=page.before, limit=page.limit
        )
        first = page.before is None and page.selection() == Filter().selection()
        unreadable = await admin.unreadable.newest(before=None, limit=page.limit) if first else ()
        more = len(found) == page.limit
        return DeadLetters(
            dead_letters=found, unreadable=unreadable, next=found[-1].seq if more else None
        )

    async def count_dead_letters(chosen: Filter) -> Reasons:
        return Reasons(reasons=await admin.desk.reasons(chosen.selection()))

    async def discard_dead_letters(_: object, chosen: Filter) -> Discarded:
        now_ms = admin.clock.now_ms()
        return Discarded(discarded=await admin.desk.discard(chosen.selection(), now_ms=now_ms))

    return (
        Operation(
            method="GET",
            path="/api/v1/dead-letters",
            summary="Deliveries that were given up, the newest first.",
            handler=list_dead_letters,
            parameters=Page,
            answer=DeadLetters,
        ),
        Operation(
            method="GET",
            path="/api/v1/dead-letters/reasons",
            summary="Deliveries that were given up, counted by sink and reason.",
            handler=count_dead_letters,
            parameters=Filter,
            answer=Reasons,
        ),
        Operation(
            method="POST",
            path="/api/v1/dead-letters/discard",
            summary="Give the dead letters that fit up for good.",
            handler=discard_dead_letters,
            body=Filter,
            answer=Discarded,
        ),
    )
