"""Searches that go back in steps, and end between two of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from relay.core.clock import Clock
from relay.core.routing import Route
from relay.store.events import EventRecord
from relay.store.selection import Condition, Selection
from relay.store.sql import Database, Sql

STEP_ROWS = 200
"""Events looked at in the first step."""

STEP_S = 0.02
"""Time that a step aims at, because other searches wait for its end."""

OVERRUN_S = 0.03
"""Time beyond the end of the search after which a step is interrupted, and done in smaller ones."""

SHRINKAGE = 8
GROWTH = 4
"""Factors between one step and the next: at once after an interrupted one, and at most."""

MARGIN_MS = 3_600_000
"""How far the clock may have been set back: sources do not tolerate as much, by far."""

T = TypeVar("T")
Db = TypeVar("Db", bound=Database)
Db_co = TypeVar("Db_co", bound=Database, covariant=True)
Db_contra = TypeVar("Db_contra", bound=Database, contravariant=True)

# SQLite takes each from the index, but both together from all of it.
_ENDS = Sql("SELECT (SELECT min(seq) FROM main.events), (SELECT max(seq) FROM main.events)")
_RECEIVED = Sql("SELECT received_at FROM main.events WHERE seq >= :seq ORDER BY seq LIMIT 1")


class EventPage(msgspec.Struct, frozen=True):
    """One page of the selected events, newest first."""

    events: Sequence[EventRecord]
    next: int | None
    """`before` of the next page; None at the end."""
    looked_to_ms: int | None
    """Receipt of the oldest event looked at if the time ran out; `next` goes on from there."""


class Count(msgspec.Struct, frozen=True):
    """A number of events; more than that if it is not complete."""

    events: int
    complete: bool
    looked_to_ms: int | None
    """Receipt of the oldest event looked at if the time ran out."""


class Pager(Protocol[Db_co]):
    """A connection that reads."""

    async def read(self, query: Callable[[Db_co], T]) -> T: ...

    async def read_within(self, limit_s: float, query: Callable[[Db_co], T]) -> T | None:
        """Run a query, but interrupt it after a time; then None."""
        ...


class Candidates(Protocol[Db_contra]):
    """Where a search looks: at all events, or only at those that an index lists."""

    def next_start(self, db: Db_contra, below: int, size: int) -> int:
        """Return where a step of this size begins that ends below a number."""
        ...

    def within(self, seqs: range) -> Condition:
        """Return the condition on `events e` to be one of them."""
        ...


class Plan(NamedTuple, Generic[Db]):
    """A way through the events."""

    selection: Selection
    """What the candidates leave to be decided."""
    candidates: Candidates[Db]
    seqs: range


class SearchQueries(msgspec.Struct, Generic[Db], frozen=True):
    """An engine's queries."""

    plan: Callable[[Db, Selection], Plan[Db]]
    events: Callable[..., list[EventRecord]]
    """Return the newest events: `(db, selection, *, routes, limit, conditions)`."""
    count: Callable[..., int]
    """Count the events: `(db, selection, *, routes, conditions)`."""
    count_all: Callable[[Db, str | None], int]
    """Count all events, or those of a source."""


class Search(Generic[Db]):
    """Searches that look back from the newest event for as long as they may.

    Each looks at some events at least, also when its time is 0, so that repeating it gets to the
    end. Searches that run at once take turns, and may raise StoreError.
    """

    def __init__(self, pager: Pager[Db], queries: SearchQueries[Db], clock: Clock) -> None:
        self._pager = pager
        self._queries = queries
        self._clock = clock

    async def find(
        self, selection: Selection, routes: Sequence[Route], *, limit: int, budget_s: float
    ) -> EventPage:
        """Return the newest selected events; `routes` decide which events a sink has missed."""
        events = list[EventRecord]()
        walk = await self._walk(selection, budget_s)
        while walk.goes_on and len(events) <= limit:
            # One more than asked for tells whether there is another page.
            query = partial(self._queries.events, routes=routes, limit=limit + 1 - len(events))
            events += await walk.step(query) or ()
        if len(events) > limit:
            return EventPage(events[:limit], next=events[limit - 1].seq, looked_to_ms=None)
        return EventPage(events, next=walk.next, looked_to_ms=walk.looked_to_ms)

    async def count(
        self, selection: Selection, routes: Sequence[Route], *, budget_s: float
    ) -> Count:
        """Count the selected events."""
        if replace(selection, source=None) == Selection():
            total = await self._pager.read_within(
                budget_s + OVERRUN_S, lambda db: self._queries.count_all(db, selection.source)
            )
            if total is not None:
                return Count(total, complete=True, looked_to_ms=None)
            budget_s = 0
        total = 0
        walk = await self._walk(selection, budget_s)
        while walk.goes_on:
            total += await walk.step(partial(self._queries.count, routes=routes)) or 0
        return Count(total, complete=walk.next is None, looked_to_ms=walk.looked_to_ms)

    async def _walk(self, selection: Selection, budget_s: float) -> "_Walk[Db]":
        deadline = self._clock.monotonic() + budget_s
        plan = await self._pager.read(lambda db: self._queries.plan(db, selection))
        return _Walk(self._pager, self._queries, self._clock, plan, deadline)


class _Walk(Generic[Db]):
    """One search on its way back, step by step."""

    def __init__(
        self,
        pager: Pager[Db],
        queries: SearchQueries[Db],
        clock: Clock,
        plan: Plan[Db],
        deadline: float,
    ) -> None:
        self._pager = pager
        self._queries = queries
        self._clock = clock
        self._plan = plan
        self._deadline = deadline
        self._left = plan.seqs
        self._rows = STEP_ROWS
        self._looked_to_ms: int | None = None
        self.goes_on = bool(self._left)

    @property
    def next(self) -> int | None:
        """Number below which nothing was looked at; None at the end."""
        return self._left.stop if self._left else None

    @property
    def looked_to_ms(self) -> int | None:
        """Receipt of the oldest event looked at; None at the end."""
        return self._looked_to_ms if self._left else None

    async def step(self, query: Callable[..., T]) -> T | None:
        """Ask for the newest events that are left; None if that was interrupted."""
        started = self._clock.monotonic()
        step = partial(self._step, query)
        if self._rows > 1:
            left_s = max(self._deadline - started, 0)
            done = await self._pager.read_within(left_s + OVERRUN_S, step)
        else:
            done = await self._pager.read(step)
        now = self._clock.monotonic()
        if done is None:
            self._rows = max(1, self._rows // SHRINKAGE)
        else:
            result, start, self._looked_to_ms = done
            self._left = range(self._left.start, start)
            factor = min(GROWTH, STEP_S / max(now - started, 1e-6))
            self._rows = max(1, int(self._rows * factor))
        is_begun = self._left != self._plan.seqs
        self.goes_on = bool(self._left) and (now < self._deadline or not is_begun)
        return None if done is None else result

    def _step(self, query: Callable[..., T], db: Db) -> tuple[T, int, int | None]:
        """Return the result, and where the step has got to."""
        candidates, left = self._plan.candidates, self._left
        start = max(candidates.next_start(db, left.stop, self._rows), left.start)
        within = candidates.within(range(start, left.stop))
        result = query(db, self._plan.selection, conditions=(within,))
        return result, start, _received_ms(db, start)


def seq_range(
    db: Database, selection: Selection, newest_ms: Callable[[str, str | None], int | None]
) -> range:
    """Return the numbers of all events that the selection can match, and of others.

    `newest_ms` returns the receipt of the last event that may be of a kind and a source, None if
    there never was one.
    """
    ((start, stop),) = db.execute(_ENDS, {}).fetchall()
    if start is None:
        return range(0)
    stop += 1
    if selection.before is not None:
        stop = min(stop, selection.before)
    if selection.kind is not None:
        last_ms = newest_ms(selection.kind, selection.source)
        stop = start if last_ms is None else _first(db, last_ms + MARGIN_MS + 1, start, stop)
    if selection.until_ms is not None:
        stop = _first(db, selection.until_ms + MARGIN_MS, start, stop)
    if selection.since_ms is not None:
        start = _first(db, selection.since_ms - MARGIN_MS, start, stop)
    return range(start, max(start, stop))


def _first(db: Database, ms: int, start: int, stop: int) -> int:
    """Return the number of the first event received then or later, by bisection."""
    while start < stop:
        middle = (start + stop) // 2
        received_ms = _received_ms(db, middle)
        if received_ms is not None and received_ms < ms:
            start = middle + 1
        else:
            stop = middle
    return start


def _received_ms(db: Database, seq: int) -> int | None:
    """Return the receipt of the first event from a number on."""
    row = db.execute(_RECEIVED, {"seq": seq}).fetchone()
    return None if row is None else int(row[0])
