"""Replays: passes over stored events that make their deliveries pending again."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from relay.core.delivery import Status
from relay.core.event import Event
from relay.core.routing import Route
from relay.store.repository import Repository, row, rows
from relay.store.rows import Row
from relay.store.selection import Selection, of_delivery
from relay.store.sql import Condition, Database, FilteredSql, Sql, Values

ReplayState = Literal["running", "done", "cancelled"]

Progress = Callable[[float, int], None]
"""Called with the share of the events looked at, 0 to 1, and the number of deliveries so far."""


def unreported(_: float, __: int) -> None:
    """Progress that is not reported."""


class Mark(NamedTuple):
    """A position in the store: the last event and the last attempt before it."""

    event: int
    attempt: int


class Replay(msgspec.Struct, frozen=True):
    """A pass over stored events that makes their deliveries pending again."""

    id: int
    created_ms: int
    selection: Selection
    state: ReplayState
    total: int
    """Selected deliveries, as counted at the start."""
    opened: int
    """Deliveries made pending so far, without those taken back."""
    cursor: int
    """`seq` of the last event processed for every sink."""
    until: Mark
    """Newest event and attempt at the start; a delivery tried since then is not opened."""
    ended_ms: int | None


class PlannedDelivery(NamedTuple):
    """A delivery for a replay to open: event (`seq`), sink, and ordering key, if any."""

    seq: int
    sink: str
    key: str | None = None


class Opening(NamedTuple):
    """A step of a replay."""

    replay: int
    deliveries: Sequence[PlannedDelivery]
    cursor: int
    now_ms: int


class DeliveryState(NamedTuple):
    """State of a delivery for a replay; pending also if it was tried since the replay started."""

    status: Status
    reason: str | None = None


class ReplayCandidate(msgspec.Struct, frozen=True):
    """A stored event with its body, selected by a replay."""

    seq: int
    event: Event
    standing: Mapping[str, DeliveryState]
    """Selected deliveries, by sink."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries that a replay would make."""

    deliveries: Counter[tuple[str, str, str | None]]
    """Counts by kind of event, sink, and reason of a dead letter."""
    events: int
    """Selected events that still have their body."""
    under_way: int
    """Selected deliveries that are pending, which a replay leaves alone."""


_COLUMNS = "id, created_at, selection, state, total, opened, cursor, until, attempt, ended_at"
_BEGIN = Sql(f"""
INSERT INTO main.replays (id, created_at, selection, state, total, until, attempt)
/*postgres OVERRIDING SYSTEM VALUE */
VALUES (:id, :now, :selection, 'running', :total, :until, :attempt)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at RETURNING {_COLUMNS}
""")
# A reload may add a sink or widen a route, so that more are opened than were counted.
_ADVANCE = Sql("""
UPDATE main.replays
SET opened = opened + :opened, total = greatest(total, opened + :opened), cursor = :cursor
WHERE id = :id AND state = 'running'
""")
_END = Sql("""
UPDATE main.replays SET state = :state, ended_at = :now WHERE id = :id AND state = 'running'
""")
_ONE = Sql(f"SELECT {_COLUMNS} FROM main.replays WHERE id = :id")
_HELD = Sql(f"{_ONE} /*postgres FOR NO KEY UPDATE */")
_NEWEST = FilteredSql(
    f"SELECT {_COLUMNS} FROM main.replays WHERE {{where}} ORDER BY id DESC LIMIT :limit",
    {"before": "id < :before"},
)
_RUNNING = Sql(f"SELECT {_COLUMNS} FROM main.replays WHERE state = 'running' ORDER BY id")
_UNDER_WAY = Sql("""
SELECT sink, count(*) FROM main.deliveries WHERE status = 'pending' AND replay = :id GROUP BY sink
""")


class Replays(Repository, ABC):
    """All replays; all methods may raise StoreError."""

    async def choose(
        self,
        selection: Selection,
        routes: Sequence[Route],
        *,
        after: int,
        until: Mark,
        limit: int,
    ) -> Sequence[ReplayCandidate]:
        """Return the oldest selected events that still have their body, in order of acceptance."""
        span = Condition(
            "e.seq > :after AND e.seq <= :until", {"after": after, "until": until.event}
        )
        fits, deliveries = self._connections.conditions.fits, of_delivery(selection)

        def choose(db: Database) -> list[ReplayCandidate]:
            where = fits(db, selection, routes, span, order="ASC", limit=limit)
            events = self._events(db, where, limit)
            standing: defaultdict[int, dict[str, DeliveryState]] = defaultdict(dict)
            for event, sink, status, reason in self._standing(
                db, deliveries, [seq for seq, _ in events], until.attempt
            ):
                standing[event][sink] = DeliveryState(Status(status), reason)
            return [ReplayCandidate(seq, event, standing[seq]) for seq, event in events]

        return await self._reader.read(choose)

    @abstractmethod
    def _events(self, db: Any, where: Condition, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the oldest events that fit and have their body, up to a size."""

    @abstractmethod
    def _standing(
        self, db: Any, where: Condition, seqs: Sequence[int], attempt: int
    ) -> Iterable[Row]:
        """Return the deliveries of events that fit: event, sink, status and reason.

        Those that were tried after an attempt are pending.
        """

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        """Store a new replay."""
        values = {
            "id": await self._connections.draw("replays"),
            "now": now_ms,
            "selection": msgspec.json.encode(selection).decode(),
            "total": total,
            "until": until.event,
            "attempt": until.attempt,
        }

        def store(db: Database) -> Replay:
            replay = begin(db, values)
            self._connections.announce(db)
            return replay

        return await self._background.transact(store)

    @abstractmethod
    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        """Make deliveries pending and advance the replay, in one transaction.

        Deliveries stay as they are if they are pending, not selected by their outcome, opened by
        this replay before, or tried since it started.
        Raises StoreFull below the floor of free space.
        """

    @abstractmethod
    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        """End a replay; cancelling takes back its deliveries that are not in flight.

        Those in flight may end, but are not tried again.
        """

    async def _end(self, number: int, state: ReplayState, now_ms: int) -> Replay:
        """Store the end of a replay; an ended one stays as it is."""

        def end(db: Database) -> Replay:
            db.execute(_END, {"id": number, "state": state, "now": now_ms})
            self._connections.announce(db)
            return held(db, number)

        return await self._background.transact(end)

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Replay]:
        """Return the newest replays, those before a number if one is given."""
        values = {"before": before, "limit": limit}
        return [_replay(each) for each in await rows(self._reader, _NEWEST.by(values), values)]

    async def running(self) -> Sequence[Replay]:
        """Return the running replays, oldest first."""
        return [_replay(each) for each in await rows(self._reader, _RUNNING, {})]

    async def one(self, number: int) -> Replay | None:
        found = await row(self._reader, _ONE, {"id": number})
        return None if found is None else _replay(found)

    async def under_way(self, replay: int) -> Mapping[str, int]:
        """Count the pending deliveries of a replay by sink, without sinks that have none."""
        return dict(await rows(self._reader, _UNDER_WAY, {"id": replay}))


def begin(db: Database, values: Values) -> Replay:
    """Store a new replay."""
    (stored,) = db.execute(_BEGIN, values).fetchall()
    return _replay(stored)


def held(db: Database, number: int) -> Replay:
    """Return a replay that must exist, and keep others from changing it in this transaction."""
    for found in db.execute(_HELD, {"id": number}).fetchall():
        return _replay(found)
    raise ValueError(f"there is no replay {number}")


def advance(db: Database, number: int, *, opened: int, cursor: int) -> Replay:
    """Note a step of a running replay."""
    db.execute(_ADVANCE, {"id": number, "opened": opened, "cursor": cursor})
    return held(db, number)


def _replay(columns: Row) -> Replay:
    number, created_ms, text, state, total, opened, cursor, event, attempt, ended_ms = columns
    selection, until = msgspec.json.decode(text, type=Selection), Mark(event, attempt)
    return Replay(number, created_ms, selection, state, total, opened, cursor, until, ended_ms)
