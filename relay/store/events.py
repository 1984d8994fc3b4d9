"""Stored events, their deliveries and attempts, as operators read them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec

from relay.core.delivery import Status
from relay.core.event import Event
from relay.core.routing import Route
from relay.store.replays import Mark
from relay.store.repository import Repository, row, rows
from relay.store.rows import ORIGINAL, SUPERSEDED
from relay.store.selection import Selection
from relay.store.sql import Sql


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
    def of(cls, columns: Sequence[Any], deliveries: Sequence[DeliveryRecord]) -> Self:
        """Make a record of the columns of an event, in this order."""
        seq, source, event_id, kind, created_at, received_ms, size, mark = columns
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


# Both tables grow at the end, so a scan back from there reads only newer rows.
_MARK = Sql("""
SELECT
    coalesce((SELECT seq FROM main.events WHERE received_at < :since ORDER BY seq DESC LIMIT 1), 0),
    coalesce((
        SELECT rowid FROM main.attempts WHERE started_at + duration_ms < :since
        ORDER BY rowid DESC LIMIT 1
    ), 0)
""")
_ATTEMPTED = Sql("""
SELECT a.rowid, a.started_at, a.duration_ms, a.result, a.status, a.reason, a.replay,
    a.sink, e.source, e.id, e.kind, e.received_at
FROM main.attempts AS a CROSS JOIN main.events AS e
WHERE e.seq = a.event AND a.rowid > :after AND a.rowid <= :until ORDER BY a.rowid LIMIT :limit
""")
_SINKS = Sql("SELECT DISTINCT sink FROM main.deliveries ORDER BY sink")
_KINDS = Sql("SELECT DISTINCT kind FROM main.events ORDER BY kind")


class Events(Repository, ABC):
    """Operators' reads, which do not delay deliveries; all methods may raise StoreError.

    What may scan the whole store is a search.
    """

    @abstractmethod
    async def page(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        """Return the newest selected events; `routes` decide which events a sink has missed."""

    @abstractmethod
    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        """Return the events with this id, else those whose ids begin with it."""

    @abstractmethod
    async def history(self, seq: int) -> History | None:
        """Return one event in full; None if it does not exist."""

    @abstractmethod
    async def queued(self, seq: int) -> Sequence[Queued]:
        """Count what is ahead of each pending delivery of an event, up to a limit."""

    @abstractmethod
    async def newest(self) -> Mark:
        """Return the mark of the newest event and attempt."""

    async def mark(self, since_ms: int) -> Mark:
        """Return the mark after which everything is newer than this."""
        return Mark(*(await row(self._searcher, _MARK, {"since": since_ms}) or (0, 0)))

    @abstractmethod
    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        """Return the oldest events after this one."""

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        """Return the oldest attempts after this one."""
        values = {"after": after, "until": await self._visible_attempt(after), "limit": limit}
        return [Attempted(*each) for each in await rows(self._reader, _ATTEMPTED, values)]

    @abstractmethod
    async def _visible_attempt(self, after: int) -> int:
        """Return the number of an attempt up to which all can be seen."""

    @abstractmethod
    async def sources(self) -> Sequence[str]:
        """Return the sources of all stored events."""

    async def sinks(self) -> Sequence[str]:
        """Return the sinks of all stored deliveries, by a full scan."""
        return [name for (name,) in await rows(self._searcher, _SINKS, {})]

    async def kinds(self) -> Sequence[str]:
        """Return the kinds of all stored events, by a full scan."""
        return [name for (name,) in await rows(self._searcher, _KINDS, {})]

    @abstractmethod
    async def has_kind(self, glob: str) -> bool:
        """Whether the glob matches a known or a stored kind."""
