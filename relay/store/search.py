"""Searches that go back in steps, and end between two of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import orjson
from msgspec.structs import replace

from relay.core.clock import Clock
from relay.core.event import KINDS
from relay.core.routing import Route
from relay.store import events
from relay.store.dead_letters import DEAD, sinks_of
from relay.store.events import EventRecord
from relay.store.globs import matching
from relay.store.repository import Reader
from relay.store.selection import Conditions, Selection
from relay.store.sql import NONE, Condition, Database, FilteredSql, Sql, joined

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

# SQLite takes each from the index, but both together from all of it.
_ENDS = Sql("SELECT (SELECT min(seq) FROM main.events), (SELECT max(seq) FROM main.events)")
_RECEIVED = Sql("SELECT received_at FROM main.events WHERE seq >= :seq ORDER BY seq LIMIT 1")
# PostgreSQL has what acceptances have added apart.
_LAST_OF_KINDS = FilteredSql(
    """
SELECT max(last_at) FROM (
    SELECT kind, source, last_at FROM main.totals
    /*postgres UNION ALL SELECT kind, source, last_at FROM main.added_totals */
) AS known
WHERE kind IN (SELECT value FROM json_each(:kinds) AS k) AND {where}
""",
    {"source": "source = :source"},
)


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


class Pager(Reader, Protocol):
    """A connection that reads."""

    async def read_within(self, limit_s: float, query: Callable[[Database], T]) -> T | None:
        """Run a query, but interrupt it after a time; then None."""
        ...


class Listed(NamedTuple):
    """Rows of one table that fit, with the numbers of their events in `column`."""

    table: str
    column: str
    fits: Condition

    def oldest(self, db: Database, below: int, size: int) -> int:
        """Return the oldest of the newest ones below a number; 0 if there are fewer."""
        newest = (
            f"SELECT {self.column} AS event FROM {self.table}"
            f" WHERE {self.fits.sql} AND {self.column} < :below"
            f" ORDER BY {self.column} DESC LIMIT :size"
        )
        sql = Sql.of_engine(f"SELECT count(*), min(event) FROM ({newest}) AS newest")
        values = {**self.fits.values, "below": below, "size": size}
        ((count, oldest),) = db.execute(sql, values).fetchall()
        return int(oldest) if count == size else 0

    def count_to(self, db: Database, limit: int) -> int:
        """Count the rows up to a limit."""
        few = f"SELECT 1 FROM {self.table} WHERE {self.fits.sql} LIMIT :limit"
        sql = Sql.of_engine(f"SELECT count(*) FROM ({few}) AS few")
        ((count,),) = db.execute(sql, {**self.fits.values, "limit": limit}).fetchall()
        return int(count)

    def within(self, seqs: range) -> Condition:
        """Return the selection of the numbers of those in a range."""
        sql = (
            f"SELECT {self.column} FROM {self.table}"
            f" WHERE {self.fits.sql} AND {self.column} >= :start AND {self.column} < :stop"
        )
        return Condition(sql, {**self.fits.values, "start": seqs.start, "stop": seqs.stop})


class Candidates(NamedTuple):
    """Where a search looks: at the events that indexes list, or at all if `lists` is None."""

    lists: Sequence[Listed] | None = None
    is_counted: bool = True
    """Whether a step has a number of candidates, found by an index, and not of events."""

    def are_few(self, db: Database, limit: int) -> bool:
        """Whether there are no more than a limit, so that sorting them takes no time."""
        return sum(each.count_to(db, limit + 1) for each in self.lists or ()) <= limit

    def next_start(self, db: Database, below: int, size: int) -> int:
        """Return where a step of this size begins that ends below a number."""
        if self.lists is None or not self.is_counted:
            return below - size
        return max((each.oldest(db, below, size) for each in self.lists), default=0)

    def within(self, seqs: range) -> Condition:
        """Return the condition on `events e` to be one of them."""
        if self.lists is None:
            place = {"start": seqs.start, "stop": seqs.stop}
            return Condition("e.seq >= :start AND e.seq < :stop", place)
        sql, values = joined(" UNION ALL ", [each.within(seqs) for each in self.lists])
        return Condition(f"e.seq IN ({sql})", values) if sql else NONE


class Indexes(NamedTuple):
    """What an engine finds by its own indexes; `db` is a connection of it."""

    candidates: Callable[[Any, Selection], Candidates]
    """Choose the list with the fewest events."""
    count_all: Callable[[Any, str | None], int]
    """Count all events, or those of a source."""


class Plan(NamedTuple):
    """A way through the events."""

    selection: Selection
    """What the candidates leave to be decided."""
    candidates: Candidates
    seqs: range


class Search:
    """Searches that look back from the newest event for as long as they may.

    Each looks at some events at least, also when its time is 0, so that repeating it gets to the
    end. Searches that run at once take turns, and may raise StoreError.
    """

    def __init__(
        self, pager: Pager, conditions: Conditions, indexes: Indexes, clock: Clock
    ) -> None:
        self._pager = pager
        self._conditions = conditions
        self._indexes = indexes
        self._clock = clock

    async def find(
        self, selection: Selection, routes: Sequence[Route], *, limit: int, budget_s: float
    ) -> EventPage:
        """Return the newest selected events; `routes` decide which events a sink has missed."""
        found = list[EventRecord]()
        walk = await self._walk(selection, budget_s)
        while walk.goes_on and len(found) <= limit:
            # One more than asked for tells whether there is another page.
            query = partial(self._newest, routes, limit + 1 - len(found))
            found += await walk.step(query) or ()
        if len(found) > limit:
            return EventPage(found[:limit], next=found[limit - 1].seq, looked_to_ms=None)
        return EventPage(found, next=walk.next, looked_to_ms=walk.looked_to_ms)

    async def count(
        self, selection: Selection, routes: Sequence[Route], *, budget_s: float
    ) -> Count:
        """Count the selected events."""
        if replace(selection, source=None) == Selection():
            total = await self._pager.read_within(
                budget_s + OVERRUN_S, lambda db: self._indexes.count_all(db, selection.source)
            )
            if total is not None:
                return Count(total, complete=True, looked_to_ms=None)
            budget_s = 0
        total = 0
        walk = await self._walk(selection, budget_s)
        while walk.goes_on:
            total += await walk.step(partial(self._count, routes)) or 0
        return Count(total, complete=walk.next is None, looked_to_ms=walk.looked_to_ms)

    async def _walk(self, selection: Selection, budget_s: float) -> "_Walk":
        deadline = self._clock.monotonic() + budget_s
        plan = await self._pager.read(lambda db: self._plan(db, selection))
        return _Walk(self._pager, self._clock, plan, deadline)

    def _plan(self, db: Database, selection: Selection) -> Plan:
        return Plan(
            # The candidates take the place of the list of all of a person's events.
            replace(selection, person=None) if selection.id is None else selection,
            self._indexes.candidates(db, selection),
            seq_range(db, selection),
        )

    def _newest(
        self,
        routes: Sequence[Route],
        limit: int,
        db: Database,
        selection: Selection,
        *of: Condition,
    ) -> list[EventRecord]:
        where = self._conditions.fits(db, selection, routes, *of, limit=limit)
        return events.newest(db, where, limit=limit)

    def _count(
        self, routes: Sequence[Route], db: Database, selection: Selection, *of: Condition
    ) -> int:
        return events.count(db, self._conditions.fits(db, selection, routes, *of))


class _Walk:
    """One search on its way back, step by step."""

    def __init__(self, pager: Pager, clock: Clock, plan: Plan, deadline: float) -> None:
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

    def _step(self, query: Callable[..., T], db: Database) -> tuple[T, int, int | None]:
        """Return the result, and where the step has got to."""
        candidates, left = self._plan.candidates, self._left
        start = max(candidates.next_start(db, left.stop, self._rows), left.start)
        within = candidates.within(range(start, left.stop))
        result = query(db, self._plan.selection, within)
        return result, start, _received_ms(db, start)


def of_deliveries(db: Database, sink: str | None, by_state: Mapping[str, Sql] = DEAD) -> Candidates:
    """List deliveries of a sink or of all, in states that have an index by sink each."""
    return Candidates(
        [
            Listed(
                "main.deliveries",
                "event",
                Condition(f"sink = :sink{number} AND {state}", {f"sink{number}": each}),
            )
            for number, (each, state) in enumerate(sinks_of(db, by_state, sink))
        ]
    )


def seq_range(db: Database, selection: Selection) -> range:
    """Return the numbers of all events that the selection can match, and of others."""
    ((start, stop),) = db.execute(_ENDS, {}).fetchall()
    if start is None:
        return range(0)
    stop += 1
    if selection.before is not None:
        stop = min(stop, selection.before)
    if selection.kind is not None:
        last_ms = _last_ms(db, selection.kind, selection.source)
        stop = start if last_ms is None else _first(db, last_ms + MARGIN_MS + 1, start, stop)
    if selection.until_ms is not None:
        stop = _first(db, selection.until_ms + MARGIN_MS, start, stop)
    if selection.since_ms is not None:
        start = _first(db, selection.since_ms - MARGIN_MS, start, stop)
    return range(start, max(start, stop))


def _last_ms(db: Database, glob: str, source: str | None) -> int | None:
    """Return the receipt of the last event that may be of a kind, None if there never was one."""
    kinds = matching(glob, KINDS)
    if glob not in KINDS:
        kinds.append("other")
    values = {"kinds": orjson.dumps(kinds).decode(), "source": source}
    row = db.execute(_LAST_OF_KINDS.by(values), values).fetchone()
    return None if row is None else row[0]


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
