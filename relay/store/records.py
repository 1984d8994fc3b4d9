"""Records of stored events, their deliveries and attempts, as operators read them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec

from relay.core.delivery import Status
from relay.core.event import Event
from relay.store.rows import ORIGINAL, SUPERSEDED


class DeliveryRecord(msgspec.Struct, frozen=True):
    """One delivery; times are milliseconds since the epoch."""

    sink: str
    status: Status
    attempts: int
    due_ms: int | None
    """Set only while it is pending and no earlier delivery of its ordering key is."""
    settled_ms: int | None
    reason: str | None
    replay: int | None
    """The last replay that opened it."""


AHEAD_MAX = 10_000
"""Deliveries ahead of another that are counted at most."""


class Queued(msgspec.Struct, frozen=True):
    """Place of a pending delivery in its sink's queue."""

    sink: str
    ahead: int
    """Deliveries that are due before it, new ones, replayed ones and retries each by themselves."""
    is_more: bool
    """Whether there are more than these."""
    of_key: int
    """Earlier deliveries of its ordering key, each of which has to end first."""

    @classmethod
    def of(cls, sink: str, ahead: int, of_key: int) -> Self:
        """Make a place of counts that ended at one more than the limit."""
        return cls(sink, min(ahead, AHEAD_MAX), ahead > AHEAD_MAX, min(of_key, AHEAD_MAX))


class EventRecord(msgspec.Struct, frozen=True):
    """One event in a list."""

    seq: int
    source: str
    id: str
    kind: str
    created_at: str | None
    received_ms: int
    bytes: int | None
    """Size of the body; None once its retention is over."""
    deliveries: Sequence[DeliveryRecord]
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""
    superseded: bool = False
    """Reconstructed, and the original has arrived since."""

    @classmethod
    def of(cls, row: Sequence[Any], deliveries: Sequence[DeliveryRecord]) -> Self:
        """Make a record of the columns of an event, in this order."""
        seq, source, event_id, kind, created_at, received_ms, size, mark = row
        return cls(
            seq,
            source,
            event_id,
            kind,
            created_at,
            received_ms,
            size,
            deliveries,
            reconstructed=mark != ORIGINAL,
            superseded=mark == SUPERSEDED,
        )


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt."""

    sink: str
    started_ms: int
    duration_ms: int
    result: str
    status: int | None
    """The destination's own status code."""
    reason: str
    answer: str
    """The beginning of the destination's answer."""
    replay: int | None


class History(msgspec.Struct, frozen=True):
    """One event with its content and attempts."""

    event: EventRecord
    headers: bytes | None
    body: bytes | None
    is_damaged: bool
    """Whether the stored body differs from the received one."""
    attempts: Sequence[AttemptRecord]

    def intact_event(self) -> Event | None:
        """Return the event as sinks get it; None if its body is gone or damaged."""
        if self.body is None or self.is_damaged:
            return None
        return Event(
            source=self.event.source,
            id=self.event.id,
            kind=self.event.kind,
            created_at=self.event.created_at,
            received_ms=self.event.received_ms,
            body=self.body,
            headers=self.headers or b"",
            reconstructed=self.event.reconstructed,
        )


class DeadLetter(msgspec.Struct, frozen=True):
    """One delivery that the relay has given up."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    sink: str
    attempts: int
    settled_ms: int | None
    reason: str | None
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


class Reason(msgspec.Struct, frozen=True):
    """A sink's dead letters with one reason."""

    sink: str
    reason: str | None
    count: int
    first_ms: int | None
    """When the first of them died."""
    last_ms: int | None


class Accepted(NamedTuple):
    """An accepted event; `number` increases with each."""

    number: int
    received_ms: int
    source: str
    id: str
    kind: str
    sinks: Sequence[str]
    reconstructed: bool = False


class Attempted(NamedTuple):
    """An attempt with its event; `number` increases with each."""

    number: int
    started_ms: int
    duration_ms: int
    result: str
    status: int | None
    reason: str
    replay: int | None
    sink: str
    source: str
    id: str
    kind: str
    received_ms: int
