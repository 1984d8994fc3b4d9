"""One event on its way to one sink: its states, the moves between them, and its attempts."""

from enum import StrEnum
from typing import Literal

import msgspec

from relay.core.event import Event


class Status(StrEnum):
    """Where a delivery stands; `MOVES` says what may follow."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    DISCARDED = "discarded"
    """Given up for good by an operator."""


MOVES: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.PENDING, Status.DELIVERED, Status.DEAD, Status.DISCARDED}),
    Status.DELIVERED: frozenset({Status.PENDING}),
    Status.DEAD: frozenset({Status.PENDING, Status.DISCARDED}),
    Status.DISCARDED: frozenset({Status.PENDING}),
}
"""Where a delivery may go from each status; the store refuses every other move.

Only a replay makes a settled one pending again, and only an operator discards: dead letters,
single deliveries that are pending, and what is about a person who is erased.
"""

Result = Literal["delivered", "retry", "parked", "dead"]

STATUS_AFTER: dict[Result, Status] = {
    "delivered": Status.DELIVERED,
    "retry": Status.PENDING,
    "parked": Status.PENDING,
    "dead": Status.DEAD,
}


class SinkResponse(msgspec.Struct, frozen=True):
    """What a sink's far end said when it took an event."""

    status: int | None = None
    excerpt: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A leased delivery: one event that one sink is to be sent."""

    seq: int
    """The event's place in the store; with `sink`, the delivery's key."""
    sink: str
    event: Event
    attempts: int
    """Attempts that counted so far: not those that are blamed on the sink."""
    first_attempt_ms: int | None
    """Start of the first attempt that counted."""
    tries: int = 0
    """All attempts so far, counted or not."""
    tried_ms: int | None = None
    """Start of the last attempt."""
    replay: int | None = None
    """The replay that made it pending again; None for a live one."""
    turn: int | None = None
    """Shared with deliveries of the same sink that wait until this one has ended."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One finished try, as it is recorded."""

    started_ms: int
    duration_ms: int
    result: Result
    status: int | None
    reason: str
    answer: str
    """A bounded excerpt of the far end's answer; can hold personal data, so it is never logged."""


DAMAGED = "the stored body is damaged, so it was not sent: its digest is not the one at receipt"
"""Why a delivery is dead that could not be made."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What the store writes after an attempt; `due_ms` counts only while it stays pending."""

    delivery: Delivery
    attempt: Attempt
    due_ms: int
    counts: bool = True
    """False for an attempt that is blamed on the sink."""
