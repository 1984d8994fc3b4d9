"""Stored events, their deliveries and attempts, as operators read them."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec
import orjson

from relay.core.delivery import Status
from relay.core.event import KINDS, Event
from relay.core.routing import Route
from relay.store.globs import matching
from relay.store.ordering import HELD_MS
from relay.store.replays import Mark
from relay.store.repository import Repository, row, rows
from relay.store.rows import ORIGINAL, SUPERSEDED, Row, is_damaged
from relay.store.selection import OF_EVENT, Selection
from relay.store.sql import Condition, Database, FilteredSql, Sql


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


EVENT = (
    "e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, length(e.body), e.reconstructed"
)
"""Columns of `EventRecord.of`."""

_NEWEST = FilteredSql(
    f"SELECT {EVENT} FROM main.events AS e WHERE {{where}} ORDER BY e.seq DESC LIMIT :limit",
    OF_EVENT,
)
_COUNT = FilteredSql("SELECT count(*) FROM main.events AS e WHERE {where}", OF_EVENT)
_HAS = FilteredSql("SELECT 1 FROM main.events AS e WHERE {where} LIMIT 1", {})
_ONE = Sql(f"""
SELECT {EVENT}, e.headers, e.body, e.digest FROM main.events AS e WHERE e.seq = :seq
""")
# SQLite holds those that wait for their turn by their due times.
_DELIVERIES = Sql(f"""
SELECT d.event, d.sink, d.status, d.attempts,
    CASE WHEN d.status = 'pending' AND d.due_at < {HELD_MS} /*postgres AND NOT EXISTS (
        SELECT 1 FROM main.deliveries AS first
        WHERE first.sink = d.sink AND first.turn = d.turn AND first.status = 'pending'
            AND first.event < d.event
    ) */ THEN d.due_at END,
    d.settled_at, d.reason, d.replay
FROM main.deliveries AS d
WHERE d.event IN (SELECT CAST(value AS bigint) FROM json_each(:seqs) AS s)
ORDER BY d.event, d.sink
""")
_ATTEMPTS = Sql("""
SELECT sink, started_at, duration_ms, result, status, reason, answer, replay
FROM main.attempts WHERE event = :seq ORDER BY started_at, rowid
""")
_ACCEPTED = Sql("""
SELECT e.seq, e.received_at, e.source, e.id, e.kind, e.reconstructed, (
    SELECT group_concat(sink, ',') FROM main.deliveries WHERE event = e.seq
)
FROM main.events AS e WHERE e.seq > :after AND e.seq <= :until ORDER BY e.seq LIMIT :limit
""")
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

    async def page(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        """Return the newest selected events; `routes` decide which events a sink has missed."""
        fits = self._connections.conditions.fits
        return await self._searcher.read(
            lambda db: newest(db, fits(db, selection, routes, limit=limit), limit=limit)
        )

    @abstractmethod
    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        """Return the events with this id, else those whose ids begin with it."""

    async def history(self, seq: int) -> History | None:
        """Return one event in full; None if it does not exist."""
        return await self._reader.read(lambda db: history(db, seq))

    @abstractmethod
    async def queued(self, seq: int) -> Sequence[Queued]:
        """Count what is ahead of each pending delivery of an event, up to a limit."""

    @abstractmethod
    async def newest(self) -> Mark:
        """Return the mark of the newest event and attempt."""

    async def mark(self, since_ms: int) -> Mark:
        """Return the mark after which everything is newer than this."""
        return Mark(*(await row(self._searcher, _MARK, {"since": since_ms}) or (0, 0)))

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        """Return the oldest events after this one."""
        values = {"after": after, "until": await self._visible_event(after), "limit": limit}
        return [_accepted(each) for each in await rows(self._reader, _ACCEPTED, values)]

    @abstractmethod
    async def _visible_event(self, after: int) -> int:
        """Return the number of an event up to which all can be seen."""

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

    async def has_kind(self, glob: str) -> bool:
        """Whether the glob matches a known or a stored kind."""

        def is_stored(db: Database) -> bool:
            where = self._connections.conditions.of_event(db, Selection(kind=glob))
            return db.execute(_HAS.where(where), where.values).fetchone() is not None

        return bool(matching(glob, KINDS)) or await self._searcher.read(is_stored)


def newest(db: Database, where: Condition, *, limit: int) -> list[EventRecord]:
    """Return the newest events that fit."""
    return records(
        db, db.execute(_NEWEST.where(where), {**where.values, "limit": limit}).fetchall()
    )


def count(db: Database, where: Condition) -> int:
    """Count the events that fit."""
    ((number,),) = db.execute(_COUNT.where(where), where.values).fetchall()
    return int(number)


def history(db: Database, seq: int) -> History | None:
    """Return one event in full."""
    for *event, headers, body, received in db.execute(_ONE, {"seq": seq}).fetchall():
        (record,) = records(db, [tuple(event)])
        attempts = [AttemptRecord(*each) for each in db.execute(_ATTEMPTS, {"seq": seq})]
        return History(record, headers, body, is_damaged(body, received), attempts)
    return None


def exact_or_longer(
    db: Database, found: Sequence[Row], event_id: str, limit: int
) -> list[EventRecord]:
    """Return the events with an id, else those whose ids begin with it, from these columns."""
    exact = [row for row in found if row[2] == event_id]
    return records(db, (exact or found)[:limit])


def records(db: Database, found: Sequence[Row]) -> list[EventRecord]:
    """Return events with their deliveries, from these columns."""
    deliveries: defaultdict[int, list[DeliveryRecord]] = defaultdict(list)
    seqs = orjson.dumps([row[0] for row in found]).decode()
    for event, sink, status, *rest in db.execute(_DELIVERIES, {"seqs": seqs}):
        deliveries[event].append(DeliveryRecord(sink, Status(status), *rest))
    return [EventRecord.of(row, deliveries[row[0]]) for row in found]


def _accepted(row: Row) -> Accepted:
    number, received_ms, source, event_id, kind, mark, sinks = row
    names = sorted(sinks.split(",")) if sinks else []
    return Accepted(number, received_ms, source, event_id, kind, names, mark != ORIGINAL)
