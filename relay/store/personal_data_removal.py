"""Removal of a person's data in small transactions, and what else each of them affects."""

import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from relay.core.delivery import Status
from relay.store import erasures
from relay.store.audience.rollup import forget_person, forget_views
from relay.store.audience.writes import AudienceWrites
from relay.store.email_matcher import EmailMatcher
from relay.store.erasures import Erasure, SentEvents, UnderWay
from relay.store.personal_data_places import EVENTS, KEYS, VIEWS, PersonalDataPlace
from relay.store.repository import Connections, Repository
from relay.store.rows import ERASED
from relay.store.sql import Database, Sql

NAMES = (
    "events",
    "unreadable",
    "quarantine",
    "excerpts",
    "reasons",
    "searches",
    "views",
    "videos",
    "reports",
    "kept_ids",
)
"""Names of places, which are fields of `Erasure`."""

DeliveryKey = tuple[int, str]
"""Number of an event, and a sink."""

InFlight = dict[DeliveryKey, UnderWay]
"""Deliveries that may still arrive."""


class Traces(msgspec.Struct):
    """Sums over rows of any places."""

    rows: Counter[str] = msgspec.field(default_factory=Counter)
    """Counts by the names of the places."""
    moved: Counter[tuple[str, Status]] = msgspec.field(default_factory=Counter)
    """Changes of the numbers of deliveries, by sink and status."""
    sent: Counter[tuple[str, str, bool]] = msgspec.field(default_factory=Counter)
    """Counts by sink, kind, and whether the sink has confirmed it."""
    last_ms: dict[tuple[str, str, bool], int] = msgspec.field(default_factory=dict)
    discarded: InFlight = msgspec.field(default_factory=dict)
    """Discarded deliveries, which were pending."""
    elsewhere: set[DeliveryKey] = msgspec.field(default_factory=set)
    """Those of them that another relay may be sending."""

    @classmethod
    def of(cls, erasure: Erasure) -> "Traces":
        """Return the sums that gave this result, without the deliveries."""
        traces = cls(rows=Counter({name: getattr(erasure, name) for name in NAMES}))
        traces.moved["", Status.PENDING] = -erasure.pending
        traces.moved["", Status.DEAD] = -erasure.dead
        for sent, is_confirmed in ((erasure.told, True), (erasure.unconfirmed, False)):
            for each in sent:
                traces.sent[each.sink, each.kind, is_confirmed] = each.count
                traces.last_ms[each.sink, each.kind, is_confirmed] = each.last_ms
        return traces

    def add(self, other: "Traces") -> None:
        self.rows.update(other.rows)
        self.moved.update(other.moved)
        self.sent.update(other.sent)
        for key, ms in other.last_ms.items():
            self.last_ms[key] = max(ms, self.last_ms.get(key, 0))
        self.discarded |= other.discarded
        self.elsewhere |= other.elsewhere

    def count_sent(self, sink: str, kind: str, last_ms: int, *, is_confirmed: bool) -> None:
        """Count an event that a sink was sent."""
        key = (sink, kind, is_confirmed)
        self.sent[key] += 1
        self.last_ms[key] = max(last_ms, self.last_ms.get(key, 0))

    def count_discarded(self, sink: str, before: Status) -> None:
        """Count a delivery that is discarded."""
        self.moved[sink, before] -= 1
        self.moved[sink, Status.DISCARDED] += 1

    def erasure(self, under_way: Sequence[UnderWay], *, wiped: bool, remains: str) -> Erasure:
        return Erasure(
            **{name: self.rows[name] for name in NAMES},
            pending=self._discarded(Status.PENDING),
            dead=self._discarded(Status.DEAD),
            told=self._sent(is_confirmed=True),
            unconfirmed=self._sent(is_confirmed=False),
            under_way=under_way,
            wiped=wiped,
            remains=remains,
        )

    def _discarded(self, before: Status) -> int:
        return -sum(count for (_, status), count in self.moved.items() if status is before)

    def _sent(self, *, is_confirmed: bool) -> list[SentEvents]:
        return [
            SentEvents(key[0], key[1], count, self.last_ms[key])
            for key, count in sorted(self.sent.items())
            if key[2] is is_confirmed
        ]


class ReportChange(NamedTuple):
    """How the report of an erasure changes with a transaction."""

    number: int
    before: str | None
    """The stored one."""
    after: Callable[[Traces], str]
    """Returns the new one, for what the transaction removes."""


# Where the outcome of the first try is unknown, a second one finds what the first has discarded.
_OPEN = Sql(f"""
SELECT d.event, d.sink, d.status, e.source, e.id
FROM main.deliveries AS d JOIN main.events AS e ON e.seq = d.event
WHERE d.event IN {KEYS} AND (
    d.status IN ('pending', 'dead')
    OR (d.status = 'discarded' AND d.reason = 'erased' AND d.settled_at = CAST(:now AS bigint))
)
ORDER BY d.event, d.sink
""")
_SENT = Sql(f"""
SELECT a.sink, e.kind, max(a.started_at + a.duration_ms),
    max(a.started_at + a.duration_ms) FILTER (WHERE a.result = 'delivered')
FROM main.attempts AS a JOIN main.events AS e ON e.seq = a.event
WHERE a.event IN {KEYS} GROUP BY a.event, e.kind, a.sink
""")


class PersonalDataRemoval(Repository, ABC):
    """Removes rows of a place; all methods may raise StoreError.

    The `db` of what an engine does in its own way is a connection of its own.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        # Drawn before any write, which may run twice.
        self._stand_in = f"{ERASED}{secrets.token_hex(8)}-"

    @abstractmethod
    def _prepare(self, db: Any, events: Sequence[int]) -> None:
        """Lock events and their deliveries, before they are read and removed.

        What the engine alone derives from them goes.
        """

    @abstractmethod
    def _sent_elsewhere(self, db: Any, events: Sequence[int]) -> Collection[DeliveryKey]:
        """Return the deliveries of events that another relay may be sending, if they are open."""

    @abstractmethod
    def _audience(self, db: Any) -> AudienceWrites:
        """Return the audience, which no other transaction changes until this one has ended."""

    async def preview(self, place: PersonalDataPlace, keys: Sequence[int]) -> Traces:
        """Return the effects that the removal of the rows would have."""
        return await self._reader.read(lambda db: self._traces(db, place, keys, None))

    async def remove(
        self,
        place: PersonalDataPlace,
        keys: Sequence[int],
        change: ReportChange,
        *,
        now_ms: int,
        done: Callable[[Traces], None],
    ) -> None:
        """Remove the rows; call `done` with the effects once they are on disk."""

        def remove(db: Database) -> Traces:
            removed = self.remove_rows(db, place, keys, now_ms)
            report = change.after(removed)
            erasures.note(db, change.number, before=change.before, report=report)
            return removed

        def removed(traces: Traces) -> None:
            self._connections.count(traces.moved)
            done(traces)

        await self._background.transact(remove, removed)

    def remove_rows(
        self, db: Database, place: PersonalDataPlace, keys: Sequence[int], now_ms: int
    ) -> Traces:
        """Remove the rows, and determine the effects in the same transaction."""
        if place is EVENTS:
            self._prepare(db, keys)
        traces = self._traces(db, place, keys, now_ms)
        if place is VIEWS:
            forget_views(self._audience(db), keys)
        values = {"keys": _json(keys), "now": now_ms, "stand_in": self._stand_in}
        for statement in place.removal:
            db.execute(statement, values)
        return traces

    def _traces(
        self, db: Database, place: PersonalDataPlace, keys: Sequence[int], now_ms: int | None
    ) -> Traces:
        traces = Traces(rows=Counter({place.name: len(keys)}))
        if place is not EVENTS:
            return traces
        values = {"keys": _json(keys), "now": now_ms}
        for seq, sink, status, source, event_id in db.execute(_OPEN, values):
            is_dead = status == Status.DEAD
            traces.count_discarded(sink, Status.DEAD if is_dead else Status.PENDING)
            if not is_dead:
                traces.discarded[seq, sink] = UnderWay(sink, source, event_id)
        traces.elsewhere = traces.discarded.keys() & self._sent_elsewhere(db, keys)
        # After the deliveries: a settlement that held one of them has added an attempt.
        for sink, kind, last_ms, confirmed_ms in db.execute(_SENT, values):
            is_confirmed = confirmed_ms is not None
            ended_ms = confirmed_ms if is_confirmed else last_ms
            traces.count_sent(sink, kind, ended_ms, is_confirmed=is_confirmed)
        return traces

    def in_flight(self, traces: Traces) -> InFlight:
        """Return which of the discarded deliveries may still arrive; called on any thread."""
        return {
            (seq, sink): delivery
            for (seq, sink), delivery in traces.discarded.items()
            if (seq, sink) in traces.elsewhere or self._connections.is_leased(sink, seq)
        }

    async def leases_made(self) -> None:
        """Return once `in_flight` includes every earlier lease."""
        await self._connections.leaser.read(lambda _: None)

    async def end(self, change: ReportChange, address: EmailMatcher, *, now_ms: int) -> None:
        """Remove the person's number, and record the end and the result."""
        report = change.after(Traces())

        def end(db: Database) -> None:
            if address.number is not None:
                forget_person(self._audience(db), address.number)
            erasures.end(db, change.number, before=change.before, report=report, now_ms=now_ms)
            # Other relays release what they have prefetched.
            self._connections.announce(db)

        await self._background.transact(end)


def _json(keys: Sequence[int]) -> str:
    return orjson.dumps(keys).decode()
