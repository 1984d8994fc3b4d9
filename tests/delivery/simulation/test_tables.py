"""The model of PostgreSQL's tables answers as a real server does, statement by statement."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from msgspec.structs import replace

from relay.core.delivery import STATUS_AFTER, Attempt, Result, Settlement
from relay.core.event import LEAD_CAPTURED, Event
from relay.store.postgres import due, due_queries, settle
from relay.store.postgres.driver import Database, Query, Row, Steps
from relay.store.postgres.due_queries import Due, DueQuery, PageRequest
from relay.store.postgres.fences import Fence, NotOwned
from relay.store.postgres.leases import START
from relay.store.tiers import Position, spans
from tests.conftest import NOW_MS, ManualClock
from tests.delivery.simulation.tables import HISTORY, Delivery, Ownership, TableDatabase, Tables
from tests.store.places import PostgresPlace

if TYPE_CHECKING:
    from relay.store import Tier

pytestmark = pytest.mark.servers

SINKS = "sales", "crm"
OWNER, OTHER = UUID(int=1), UUID(int=2)
SPREAD_MS = 400
"""Times are within this of each other, so that many are equal."""

T = TypeVar("T")

_EVENT = """
INSERT INTO relay.events (seq, source, id, kind, received_at, digest, headers, body)
VALUES (%s, 'main', %s, %s, %s, %s, %s, %s)
"""
_DELIVERY = "INSERT INTO relay.deliveries (event, sink, due_at, turn, status) VALUES"
_REOPEN = """
UPDATE relay.deliveries
SET status = 'pending', replay = %s, due_at = %s, tries = 0, attempts = 0,
    tried_at = NULL, first_attempt_at = NULL
WHERE event = %s AND sink = %s
"""
_OWN = """
INSERT INTO relay.ownership (sink, holder, fence, expires_at) VALUES (%s, %s, %s, 'infinity')
ON CONFLICT (sink) DO UPDATE SET holder = excluded.holder, fence = excluded.fence
"""
_ROWS = """
SELECT event, sink, due_at, turn, status, attempts, tries, first_attempt_at, tried_at, replay
FROM relay.deliveries ORDER BY event, sink
"""
_ATTEMPTS = """
SELECT event, sink, started_at, duration_ms, result, status, reason
FROM relay.attempts ORDER BY number
"""


class Pair:
    """The model and a real schema, which are changed alike."""

    def __init__(self, real: Database, random: Random) -> None:
        self.real = real
        self.tables = Tables()
        self.model: Any = TableDatabase(self.tables, lambda: None)
        self.random = random
        self.leased: list[Due] = []
        self._drawn: list[int] = []

    def time_ms(self) -> int:
        return NOW_MS + self.random.randint(-SPREAD_MS, SPREAD_MS)

    def insert(self) -> None:
        """Insert the events of some numbers, not in their order."""
        self._drawn += [self.tables.draw() for _ in range(3)]
        seq = self._drawn.pop(self.random.randrange(len(self._drawn)))
        body = b"x" * self.random.choice((10, 10, 10, 10, 10, 1_500_000))
        event = Event(
            source="main",
            id=f"e{seq}",
            kind=LEAD_CAPTURED,
            created_at=None,
            received_ms=self.time_ms(),
            body=body,
        )
        turns = {sink: self.random.choice((None, None, 7, 8, 9)) for sink in SINKS}
        self.tables.insert(seq, event, turns, now_ms=event.received_ms)
        digest = self.tables.digest(body)
        values = (seq, event.id, event.kind, event.received_ms, digest, event.headers, body)
        self.real.execute(_EVENT, values)
        for sink, turn in turns.items():
            row = (seq, sink, event.received_ms, turn)
            self.real.execute(f"{_DELIVERY} (%s, %s, %s, %s, 'pending')", row)

    def reopen(self) -> None:
        ended = [row for row in self._rows() if row.status != "pending"]
        if ended:
            row, now_ms = self.random.choice(ended), self.time_ms()
            self.tables.reopen(row, replay=3, now_ms=now_ms)
            self.real.execute(_REOPEN, (3, now_ms, row.event, row.sink))

    def own(self) -> None:
        sink = self.random.choice(SINKS)
        row = Ownership(self.random.choice((OWNER, OTHER)), self.random.randint(1, 2))
        self.tables.ownership[sink] = row
        self.real.execute(_OWN, (sink, row.holder, row.fence))

    def lease(self) -> None:
        query, random = self._query(), self.random
        tiers: list[Tier] = random.sample(("live", "replay", "tried"), random.randint(1, 3))
        wanted = {
            tier: PageRequest(self._position(), random.choice((1, 4, 70)))
            for tier in ("live", "replay", "tried")
            if tier in tiers
        }
        pages = self._same(lambda db: due_queries.due_pages(db, query, wanted))
        if pages is not None:
            self.leased += [each for page in pages.by_tier.values() for each in page.due]

    def lease_firsts(self) -> None:
        query, limit = self._query(), self.random.choice((1, 2, 8))
        turns = self.random.sample((7, 8, 9, 10), 3)
        self._same(lambda db: _sorted(due_queries.first_of_turns(db, query, turns, limit=limit)))

    def bring_forward(self) -> None:
        random = self.random
        late = spans(beyond_ms=self.time_ms(), to_ms=self.time_ms(), now_ms=self.time_ms())
        span, sink, now_ms = random.choice(late), random.choice(SINKS), self.time_ms()
        last = self._same(due.last_event)
        assert last is not None
        ahead, last = random.choice((span.end, self._position())), last - random.choice((0, 4))
        self._same(lambda db: due.step(db, sink, span, ahead=ahead, last=last, now_ms=now_ms))
        self._same(lambda db: due.single(db, sink, span, event=last, now_ms=now_ms))

    def settle(self) -> None:
        """Settle deliveries under fences that may be wrong, some of which have changed since."""
        random = self.random
        chosen = random.sample(self.leased, min(len(self.leased), random.randint(1, 4)))
        outcomes = [settle.Outcome(self._settlement(each), self._fence()) for each in chosen]
        if outcomes:
            real = _perform(settle.settle([outcomes]), self._execute)
            model = _perform(
                settle.settle([outcomes]), lambda query: self.tables.execute(query).rows
            )
            assert model == real

    def check(self) -> None:
        """Compare the tables as a whole."""
        rows = sorted(self._rows(), key=lambda row: (row.event, row.sink))
        names = Delivery.__struct_fields__
        model = [tuple(getattr(row, name) for name in names) for row in rows]
        order = "event", "sink", "due_at", "turn", "status", "attempts", "tries"
        assert names == (*order, "first_attempt_at", "tried_at", "replay")
        assert self.real.execute(_ROWS).fetchall() == model
        assert self.real.execute(_ATTEMPTS).fetchall() == self.tables.attempts

    def _rows(self) -> Iterator[Delivery]:
        return (row for sink in SINKS for row in self.tables.deliveries[sink].values())

    def _same(self, statement: Any) -> Any:
        """Run it on both; return the answer, None where the sink is not owned."""
        answers = [_answer(statement, db) for db in (self.real, self.model)]
        assert answers[0] == answers[1]
        return answers[0]

    def _execute(self, query: Query) -> list[Row]:
        cursor = self.real.execute(*query)
        return cursor.fetchall() if cursor.description else []

    def _query(self) -> DueQuery:
        sink = self.random.choice(SINKS)
        held = [each.delivery for each in self.leased if each.delivery.sink == sink]
        some = self.random.sample(held, min(len(held), self.random.randint(0, 6)))
        return DueQuery(
            sink=sink,
            fence=self._fence(),
            now_ms=self.time_ms(),
            leased=[each.seq for each in some],
            busy=[each.turn for each in some if each.turn is not None],
        )

    def _fence(self) -> Fence | None:
        return self.random.choice((None, None, Fence(OWNER, HISTORY, self.random.randint(1, 2))))

    def _position(self) -> Position:
        return self.random.choice((START, Position(self.time_ms(), self.random.randint(0, 60))))

    def _settlement(self, leased: Due) -> Settlement:
        results: tuple[Result, ...] = tuple(STATUS_AFTER)
        attempt = Attempt(
            started_ms=self.time_ms(),
            duration_ms=self.random.randint(0, 9),
            result=self.random.choice(results),
            reason="why",
        )
        delivery = replace(
            leased.delivery, attempts=self.random.choice((leased.delivery.attempts, 1))
        )
        counts = self.random.random() < 0.5
        return Settlement(delivery=delivery, attempt=attempt, due_ms=self.time_ms(), counts=counts)


def _perform(steps: Steps[T], execute: Callable[[Query], Sequence[Row]]) -> T:
    try:
        query = next(steps)
        while True:
            query = steps.send(list(execute(query)))
    except StopIteration as end:
        result: T = end.value
        return result


def _answer(statement: Any, db: Any) -> Any:
    try:
        return statement(db)
    except NotOwned:
        return None


def _sorted(firsts: tuple[list[Due], frozenset[int]]) -> tuple[list[Due], frozenset[int]]:
    due, beyond = firsts
    return sorted(due, key=lambda each: each.position), beyond


@pytest.mark.parametrize("seed", range(6))
async def test_random_statements_have_the_same_results(seed: int) -> None:
    place, random = PostgresPlace(), Random(seed)
    async with place.open(ManualClock()):
        pass
    try:
        with closing(Database(place.server.dsn, place.schema)) as real:
            pair = Pair(real, random)
            steps = [pair.insert, pair.lease, pair.lease_firsts, pair.settle, pair.settle]
            steps += [pair.insert, pair.bring_forward, pair.reopen, pair.own]
            for _ in range(150):
                random.choice(steps)()
            pair.check()
            assert pair.leased
            assert pair.tables.attempts
    finally:
        place.drop()
