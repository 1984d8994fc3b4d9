"""A model of PostgreSQL's tables, and of the statements by which deliveries are dispatched.

It stands below the store: it is passed the store's own SQL, and knows each text. A statement sees
what is committed at its one moment. An acceptance draws its number before its commit, so that
numbers become visible out of order. `test_tables.py` compares all of it with a real server.
"""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, combinations
from typing import Any, NamedTuple, Self, get_args
from uuid import UUID

import msgspec

from relay.core.event import Event
from relay.core.sink_status import State
from relay.store import Tier
from relay.store.postgres import due, due_queries, settle
from relay.store.postgres.driver import Query
from relay.store.postgres.due_queries import LEASE_BYTES_MAX
from relay.store.postgres.write_queue import CONFIRM

Place = tuple[int, int]
"""Due time and event: the order of the indexes."""

HISTORY = "00000001"
_LAST = 1 << 62
_TIERS: tuple[Tier, ...] = get_args(Tier)
_PAGES = {
    due_queries._due_sql(tiers, window): (tiers, window)
    for tiers in chain(*(combinations(_TIERS, count) for count in (1, 2, 3)))
    for window in due_queries._WINDOWS
}
_FIRSTS = due_queries._DUE.format(seen=due_queries._FIRSTS, next_due="NULL")
_LATER = {text: tier for tier, text in due._LATER.items()}
_BRING_FORWARD = {text: tier for tier, text in due._BRING_FORWARD.items()}


class Delivery(msgspec.Struct, kw_only=True):
    """A row of `deliveries`."""

    event: int
    sink: str
    due_at: int
    turn: int | None = None
    status: str = "pending"
    attempts: int = 0
    tries: int = 0
    first_attempt_at: int | None = None
    tried_at: int | None = None
    replay: int | None = None

    @property
    def tier(self) -> Tier:
        if self.tries:
            return "tried"
        return "live" if self.replay is None else "replay"


class Ownership(NamedTuple):
    """A row of `ownership`."""

    holder: UUID
    fence: int


class StateChange(NamedTuple):
    """A row of `sink_states`."""

    at: int
    state: State | None


class Tables:
    """The committed rows, with the indexes over the pending deliveries."""

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self.deliveries: defaultdict[str, dict[int, Delivery]] = defaultdict(dict)
        self.attempts: list[tuple[Any, ...]] = []
        self.ownership: dict[str, Ownership] = {}
        self.paused: dict[str, int] = {}
        self.sink_states: defaultdict[str, list[StateChange]] = defaultdict(list)
        self._due: defaultdict[tuple[str, Tier], list[Place]] = defaultdict(list)
        self._turns: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._digests: dict[bytes, bytes] = {}
        self._last = 0

    def draw(self) -> int:
        """Return the next event's number; it is seen only once it is inserted."""
        self._last += 1
        return self._last

    def insert(
        self, seq: int, event: Event, turns: Mapping[str, int | None], *, now_ms: int
    ) -> None:
        """Commit an event, with a delivery for each sink and its turn; `now_ms` is the server's."""
        self.events[seq] = event
        due_ms = min(event.received_ms, now_ms)
        for sink, turn in turns.items():
            row = Delivery(event=seq, sink=sink, due_at=due_ms, turn=turn)
            self.deliveries[sink][seq] = row
            self._index(row)

    def reopen(self, row: Delivery, *, replay: int, now_ms: int) -> None:
        """Commit what a replay does with a delivery that has ended."""
        row.status, row.replay, row.due_at = "pending", replay, now_ms
        row.tries = row.attempts = 0
        row.tried_at = row.first_attempt_at = None
        self._index(row)

    def due(self, sink: str, now_ms: int) -> Iterator[Delivery]:
        """Yield the due deliveries that have no other before them, tier by tier, in their order."""
        for tier in _TIERS:
            for place in self._due[sink, tier]:
                if place[0] > now_ms:
                    break
                row = self.deliveries[sink][place[1]]
                if row.turn is None or self._turns[sink, row.turn][0] == row.event:
                    yield row

    def pending(self, sink: str) -> int:
        return sum(len(self._due[sink, tier]) for tier in _TIERS)

    def digest(self, body: bytes) -> bytes:
        if body not in self._digests:
            self._digests[body] = hashlib.sha256(body).digest()
        return self._digests[body]

    def _index(self, row: Delivery) -> None:
        if row.status == "pending":
            insort(self._due[row.sink, row.tier], (row.due_at, row.event))
            if row.turn is not None:
                insort(self._turns[row.sink, row.turn], row.event)

    def _unindex(self, row: Delivery) -> None:
        if row.status == "pending":
            places = self._due[row.sink, row.tier]
            del places[bisect_left(places, (row.due_at, row.event))]
            if row.turn is not None:
                self._turns[row.sink, row.turn].remove(row.event)

    # The statements

    def execute(self, query: Query) -> "Result":
        """Run one of the store's statements."""
        text, values = query
        if text in _PAGES:
            return Result(self._pages(values, *_PAGES[text]))
        if text == _FIRSTS:
            return Result(self._firsts(values))
        if text == settle._SETTLE:
            return Result(self._settle(values))
        if text == settle._OVERTAKEN:
            return Result(self._note_overtaken(values))
        if text in _LATER:
            return Result(self._later(_LATER[text], values))
        if text in _BRING_FORWARD:
            return Result((), self._bring_forward(_BRING_FORWARD[text], values))
        if text == due._LAST_EVENT:
            return Result([(max(self.events, default=0),)])
        if text == CONFIRM.text:
            return Result(())
        raise LookupError(f"the model does not know this statement: {text}")

    def _pages(self, values: Any, tiers: Sequence[Tier], window: int) -> Sequence[tuple[Any, ...]]:
        sink, now_ms, places = values["sink"], values["now"], values["places"]
        if not self._may_read(values):
            return ()
        rows: list[tuple[Any, ...]] = []
        next_due: int | None = None
        for number, tier in enumerate(tiers):
            index = self._due[sink, tier]
            *behind, limit = places[3 * number : 3 * number + 3]
            start, end = bisect_right(index, tuple(behind)), bisect_right(index, (now_ms, _LAST))
            if end < len(index):
                next_due = index[end][0] if next_due is None else min(next_due, index[end][0])
            seen = [
                self.deliveries[sink][seq] for _, seq in index[start : min(end, start + window)]
            ]
            rows += self._judge(seen, values, tier, limit)
        rows = rows or [(None,) * 19]
        return [(*row, next_due) for row in rows]

    def _firsts(self, values: Any) -> Sequence[tuple[Any, ...]]:
        sink = values["sink"]
        if not self._may_read(values):
            return ()
        firsts = [self._turns[sink, turn][0] for turn in values["turns"] if self._turns[sink, turn]]
        seen = [self.deliveries[sink][seq] for seq in firsts]
        due = sorted(
            (row for row in seen if row.due_at <= values["now"]),
            key=lambda row: (row.due_at, row.event),
        )
        rows = self._judge(due, values, "first", values["places"][0]) or [(None,) * 19]
        return [(*row, None) for row in rows]

    def _may_read(self, values: Any) -> bool:
        """Do what `READ_GUARD` does."""
        if values["fence"] is None:
            return True
        owner = self.ownership.get(values["sink"])
        claimed = Ownership(values["holder"], values["fence"])
        return owner == claimed and values["history"] == HISTORY

    def _judge(
        self, seen: Sequence[Delivery], values: Any, tier: str, limit: int
    ) -> list[tuple[Any, ...]]:
        leased, busy = set(values["leased"]), set(values["busy"])
        rows: list[tuple[Any, ...]] = []
        count = size = 0
        for row in seen:
            event = self.events[row.event]
            is_first = row.turn is None or (
                row.turn not in busy and self._turns[row.sink, row.turn][0] == row.event
            )
            taken, columns = None, (None,) * 9
            if is_first and row.event not in leased:
                taken = count < limit and size < LEASE_BYTES_MAX
                columns = self._event_columns(event, with_body=taken)
                count, size = count + 1, size + len(event.body)
            rows.append((*_delivery_columns(row), taken, *columns, tier))
        return rows

    def _event_columns(self, event: Event, *, with_body: bool) -> tuple[Any, ...]:
        return (
            event.source,
            event.id,
            event.kind,
            event.created_at,
            event.received_ms,
            event.body if with_body else None,
            event.headers,
            0,
            self.digest(event.body),
        )

    def _later(self, tier: Tier, values: Any) -> list[Place]:
        sink, after, *ahead, last = values
        index = self._due[sink, tier]
        start, end = bisect_right(index, (after, _LAST)), bisect_left(index, tuple(ahead))
        late = [place for place in reversed(index[start:end]) if place[1] <= last]
        return late[: due.STEP_ROWS]

    def _bring_forward(self, tier: Tier, values: Any) -> int:
        count = 0
        for seq in values["events"]:
            row = self.deliveries[values["sink"]].get(seq)
            is_meant = row is not None and row.status == "pending" and row.tier == tier
            if row is None or not is_meant or not values["after"] < row.due_at < values["before"]:
                continue
            self._unindex(row)
            row.due_at = values["due"]
            row.first_attempt_at = _not_after(row.first_attempt_at, values["now"])
            row.tried_at = _not_after(row.tried_at, values["now"])
            self._index(row)
            count += 1
        return count

    def _settle(self, values: Any) -> list[tuple[Any, ...]]:
        owned = self._owned(values)
        rows: list[tuple[Any, ...]] = [(None, *each) for each in sorted(owned)]
        done: set[tuple[int, str]] = set()
        for number, outcome in enumerate(_outcomes(values), 1):
            key = outcome["event"], outcome["sink"]
            is_owned = outcome["fence"] is None or (outcome["sink"], outcome["fence"]) in owned
            row = self.deliveries[outcome["sink"]].get(outcome["event"])
            if key in done or not is_owned or row is None or row.status != "pending":
                continue
            done.add(key)
            if row.attempts == outcome["attempts"]:
                self._move(row, outcome)
                rows.append((number, None, None))
        return rows

    def _owned(self, values: Any) -> set[tuple[str, int]]:
        """Do what `GUARD` does."""
        claims = zip(
            *(values[name] for name in ("guarded", "holders", "histories", "fences")), strict=True
        )
        return {
            (sink, fence)
            for sink, holder, history, fence in claims
            if self.ownership.get(sink) == Ownership(holder, fence) and history == HISTORY
        }

    def _move(self, row: Delivery, outcome: Mapping[str, Any]) -> None:
        self._unindex(row)
        row.status, row.due_at = outcome["after"], outcome["due_at"]
        row.tries, row.tried_at = row.tries + 1, outcome["started_at"]
        row.attempts += outcome["counts"]
        if row.first_attempt_at is None and outcome["counts"]:
            row.first_attempt_at = outcome["started_at"]
        if row.status != "pending":
            row.turn = None
        self._index(row)
        self.attempts.append(_attempt(outcome))

    def _note_overtaken(self, values: Any) -> tuple[()]:
        for outcome in _outcomes(values):
            attempt = _attempt(outcome)
            exists = outcome["event"] in self.deliveries[outcome["sink"]]
            if exists and attempt not in self.attempts:
                self.attempts.append(attempt)
        return ()


class Result(NamedTuple):
    """What `Database.execute` returns."""

    rows: Sequence[tuple[Any, ...]]
    rowcount: int = 0

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self.rows)


class TableDatabase:
    """Stands for a `Database`: what the store's functions call."""

    def __init__(self, tables: Tables, count: Callable[[], None]) -> None:
        """`count` is called at each round trip."""
        self._tables = tables
        self._count = count
        self.is_in_doubt = False

    def execute(self, text: str, values: Any = None) -> Result:
        self._count()
        return self._tables.execute(Query(text, values))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        # Nothing else runs meanwhile: what the block does is done at one moment.
        self._count()
        yield self
        self._count()


def _delivery_columns(row: Delivery) -> tuple[Any, ...]:
    return (
        row.event,
        row.due_at,
        row.attempts,
        row.first_attempt_at,
        row.replay,
        row.turn,
        row.tries,
        row.tried_at,
    )


def _outcomes(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    columns = [name for name in values if name not in ("guarded", "holders", "histories", "fences")]
    for row in zip(*(values[name] for name in columns), strict=True):
        yield dict(zip(columns, row, strict=True))


def _attempt(outcome: Mapping[str, Any]) -> tuple[Any, ...]:
    names = "event", "sink", "started_at", "duration_ms", "result", "code", "reason"
    return tuple(outcome[name] for name in names)


def _not_after(time_ms: int | None, now_ms: int) -> int | None:
    return None if time_ms is None else min(time_ms, now_ms)
