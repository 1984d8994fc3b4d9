"""Searches in SQLite that go back in steps, and end between two of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from relay.core.clock import Clock
from relay.core.routing import Route
from relay.store.operations import EventRecord
from relay.store.search import Count, Found
from relay.store.selection import Selection
from relay.store.sqlite import operator_queries, seq_range
from relay.store.sqlite.candidates import Candidates
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.shared import Part, Shared

T = TypeVar("T")

STEP_ROWS = 200
"""Events looked at in the first step."""

STEP_S = 0.02
"""Time that a step aims at, because other searches wait for its end."""

OVERRUN_S = 0.03
"""Time beyond the end of the search after which a step is interrupted, and done in smaller ones."""

SHRINKAGE = 8
GROWTH = 4
"""Factors between one step and the next: at once after an interrupted one, and at most."""

# Both are answered by an index alone, with 10 to 50 ms for a million.
_ALL = "SELECT count(*) FROM events"
_OF_SOURCE = "SELECT count(*) FROM events WHERE source = ?"


class SqliteSearch(Part):
    """Fulfils `relay.store.search.Search`."""

    def __init__(self, shared: Shared, clock: Clock) -> None:
        super().__init__(shared)
        self._pager = shared.pager
        self._clock = clock

    async def find(
        self, selection: Selection, routes: Sequence[Route], *, limit: int, budget_s: float
    ) -> Found:
        found = list[EventRecord]()
        walk = await self._walk(selection, budget_s)
        while walk.goes_on and len(found) <= limit:
            # One more than asked for tells whether there is another page.
            query = partial(operator_queries.events, routes=routes, limit=limit + 1 - len(found))
            found += await walk.step(query) or ()
        if len(found) > limit:
            return Found(found[:limit], next=found[limit - 1].seq, looked_to_ms=None)
        return Found(found, next=walk.next, looked_to_ms=walk.looked_to_ms)

    async def count(
        self, selection: Selection, routes: Sequence[Route], *, budget_s: float
    ) -> Count:
        if replace(selection, source=None) == Selection():
            count_all = partial(_all, source=selection.source)
            total = await self._pager.read_within(budget_s + OVERRUN_S, count_all)
            if total is not None:
                return Count(total, complete=True, looked_to_ms=None)
            budget_s = 0
        total = 0
        walk = await self._walk(selection, budget_s)
        while walk.goes_on:
            total += await walk.step(partial(operator_queries.count, routes=routes)) or 0
        return Count(total, complete=walk.next is None, looked_to_ms=walk.looked_to_ms)

    async def _walk(self, selection: Selection, budget_s: float) -> "_Walk":
        deadline = self._clock.monotonic() + budget_s
        plan = await self._pager.read(partial(_plan, selection=selection))
        return _Walk(self._pager, self._clock, plan, deadline)


class _Plan(NamedTuple):
    selection: Selection
    candidates: Candidates
    seqs: range


def _plan(db: sqlite3.Connection, selection: Selection) -> _Plan:
    return _Plan(
        # The candidates take the place of the list of all of a person's events.
        replace(selection, person=None) if selection.id is None else selection,
        Candidates.of(db, selection),
        seq_range.seq_range(db, selection),
    )


class _Walk:
    """One search on its way back, step by step."""

    def __init__(self, pager: Connection, clock: Clock, plan: _Plan, deadline: float) -> None:
        self._pager = pager
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

    def _step(self, query: Callable[..., T], db: sqlite3.Connection) -> tuple[T, int, int | None]:
        """Return the result, and where the step has got to."""
        candidates, left = self._plan.candidates, self._left
        start = max(candidates.next_start(db, left.stop, self._rows), left.start)
        within = candidates.within(range(start, left.stop))
        result = query(db, self._plan.selection, conditions=(within,))
        return result, start, seq_range.received_ms(db, start)


def _all(db: sqlite3.Connection, source: str | None) -> int:
    row = db.execute(_ALL) if source is None else db.execute(_OF_SOURCE, (source,))
    return int(row.fetchone()[0])
