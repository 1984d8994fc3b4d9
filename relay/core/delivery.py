"""A delivery of one event to one sink: its states, their transitions, and its attempts."""

from enum import StrEnum
from typing import Literal

import msgspec

from relay.core.event import Event


class Status(StrEnum):
    """State of a delivery; `MOVES` lists the transitions."""

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
"""Allowed transitions from each status; the store refuses all others.

Only a replay makes a settled delivery pending again. Only an operator discards: dead letters,
single pending deliveries, and deliveries about an erased person.
"""

Result = Literal["delivered", "retry", "parked", "dead"]

STATUS_AFTER: dict[Result, Status] = {
    "delivered": Status.DELIVERED,
    "retry": Status.PENDING,
    "parked": Status.PENDING,
    "dead": Status.DEAD,
}


class SinkResponse(msgspec.Struct, frozen=True):
    """The destination's response to an event that it accepted."""

    status: int | None = None
    excerpt: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A leased delivery: one event, due to one sink."""

    seq: int
    """The event's sequence number in the store; with `sink`, the delivery's key."""
    sink: str
    event: Event
    attempts: int
    """Attempts so far, without those that are blamed on the sink."""
    first_attempt_ms: int | None
    """Start of the first attempt that is included in `attempts`."""
    tries: int = 0
    """All attempts so far."""
    tried_ms: int | None = None
    """Start of the last attempt."""
    replay: int | None = None
    """The replay that made it pending again; None for a live delivery."""
    turn: int | None = None
    """Ordering key: the sink's later deliveries with the same key wait for this one."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt, as it is recorded."""

    started_ms: int
    duration_ms: int
    result: Result
    status: int | None = None
    reason: str = ""
    answer: str = ""
    """A bounded excerpt of the response; may hold personal data, so it is never logged."""


DAMAGED = "the stored body is damaged, so it was not sent: its digest is not the one at receipt"
"""Reason of a dead letter whose body cannot be delivered."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an attempt for the store to write; `due_ms` matters only if it stays pending."""

    delivery: Delivery
    attempt: Attempt
    due_ms: int
    counts: bool = True
    """False for an attempt that is blamed on the sink."""
