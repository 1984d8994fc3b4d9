"""A relay's store on the model of PostgreSQL: the real leasing, write queues and settlements.

Who owns a sink is decided by the scenario; `tests/core/cluster` is about that. The real fences
prove it to the tables.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from relay.core.clock import ClockSample, SynchronizedClock
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.core.sink_status import SinkStatus
from relay.store import Offer
from relay.store.keyed_digests import PersonDigests, TokenDigests
from relay.store.ordering import OrderingKeys
from relay.store.postgres.fences import Fence
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.leases import Leases
from relay.store.postgres.leasing import Leasing
from relay.store.postgres.outstanding import Outstanding
from relay.store.postgres.shared import Shared
from relay.store.postgres.transactions import Transactions
from relay.store.postgres.vacuum import Vacuum
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.sink_states import Change, LeftState
from tests.delivery.simulation.line import (
    BlockingConnection,
    Line,
    MachineClock,
    StepConnection,
)
from tests.delivery.simulation.tables import (
    HISTORY,
    Ownership,
    StateChange,
    TableDatabase,
    Tables,
)

if TYPE_CHECKING:
    from relay.store.postgres.connection import Connection

REPLAYED = 40
"""Deliveries that a step of a replay opens."""

_KEY = b"simulated"

Lost = Callable[[str], None]


class PostgresMember:
    """The store of one relay; fulfils what a dispatcher and its supervisor use of `Store`."""

    def __init__(
        self, tables: Tables, server: MachineClock, line: Line, *, number: int, lost: Lost
    ) -> None:
        """`server` is the clock of the database's machine.

        `lost` is called with a sink once the tables have refused its fence.
        """
        clock = SynchronizedClock(line.clock, elapsed_ns=line.clock.elapsed_ns)
        self.clock = clock
        self._tables = tables
        self._line = line

        def connection() -> "Connection":
            connected = BlockingConnection(line, lambda count: TableDatabase(tables, count))
            return cast("Connection", connected)

        self.ownership = SimulatedOwnership(tables, UUID(int=number), lost=lost)
        self.paused_sinks = PausedSinks(tables, connection())
        self._control = BlockingConnection(line, lambda count: partial(_now_ns, server, count))
        leaser, reader = connection(), connection()
        self.sink_states = SinkStates(tables, leaser, connection())
        shared = Shared(
            leaser=leaser,
            reader=reader,
            searcher=reader,
            pager=reader,
            writer=GroupCommit(
                cast("Any", StepConnection(line, lambda query: tables.execute(query).fetchall())),
                clock=clock,
                committed=lambda _: None,
            ),
            background=Transactions(connection(), clock=clock),
            digests=PersonDigests(_KEY),
            tokens=TokenDigests(_KEY),
            turns=OrderingKeys(_KEY),
            outstanding=Outstanding(leaser, clock),
            events=VisibleNumbers(reader, "events", "seq"),
            fences=self.ownership,
            leases=Leases(),
            vacuum=Vacuum(connection, clock=clock),
            member=self.ownership.id,
        )
        leasing = Leasing(shared, clock)
        self.lease, self.release, self.settle = leasing.lease, leasing.release, leasing.settle
        self.reclaim, self.bring_forward = leasing.reclaim, leasing.bring_forward

    async def synchronize(self) -> int:
        """Sample the database's clock as a survey does; return the step of the store's clock."""
        elapsed_ns = self._line.clock.elapsed_ns
        sample = await self._control.read(
            lambda now_ns: ClockSample(elapsed_ns(), now_ns(), elapsed_ns())
        )
        return self.clock.adopt(sample)


def _now_ns(server: MachineClock, count: Callable[[], None]) -> int:
    """Ask the server for its time."""
    count()
    return server.now_ms() * 1_000_000


class PostgresEngine:
    """The database that all relays of a run share."""

    def __init__(self) -> None:
        self.clock = MachineClock()
        self._tables = Tables()
        self._turns = OrderingKeys(_KEY)
        self._seqs: dict[str, int] = {}

    def store(self, line: Line, *, number: int, lost: Lost) -> PostgresMember:
        return PostgresMember(self._tables, self.clock, line, number=number, lost=lost)

    async def accept(
        self,
        store: PostgresMember,
        event: Event,
        verdicts: Sequence[Verdict],
        offer: Offer,
        stored: Callable[[], None],
        *,
        commit_s: float,
    ) -> None:
        """Store an event, whose commit takes this long after its number was drawn."""
        line = store._line
        await asyncio.sleep(line.trip() / 2)
        seq, now_ms = self._tables.draw(), self.clock.now_ms()
        await asyncio.sleep(commit_s)
        turns = {
            each.sink: None if each.key is None else self._turns.live(each.sink, each.key)
            for each in verdicts
        }
        self._tables.insert(seq, event, turns, now_ms=now_ms)
        self._seqs[event.id] = seq
        stored()
        await asyncio.sleep(line.trip() / 2)

    async def synchronize(self, store: PostgresMember) -> int:
        """Return the step that a relay's clock has made."""
        return await store.synchronize()

    def own(self, sink: str, store: PostgresMember | None) -> None:
        """Give a sink to a relay, or to none."""
        before = self._tables.ownership.get(sink)
        number = 1 if before is None else before.fence + 1
        holder = UUID(int=0) if store is None else store.ownership.id
        self._tables.ownership[sink] = Ownership(holder, number)
        if store is not None:
            store.ownership.acquired(sink, number)

    def reopen(self, sink: str, now_ms: int) -> None:
        """Do what a step of a replay does."""
        rows = self._tables.deliveries[sink].values()
        for row in [row for row in rows if row.status != "pending"][:REPLAYED]:
            self._tables.reopen(row, replay=1, now_ms=now_ms)

    def due(self, sink: str, now_ms: int) -> Iterator[str]:
        """Yield the events that are due to a sink with none of their key before them."""
        return (self._tables.events[row.event].id for row in self._tables.due(sink, now_ms))

    def is_pending(self, sink: str, event: str) -> bool:
        return self._tables.deliveries[sink][self._seqs[event]].status == "pending"

    def pending(self, sink: str) -> int:
        return self._tables.pending(sink)

    def dead(self, sink: str) -> Iterator[tuple[str, bool]]:
        """Yield the dead letters of a sink, and whether a replay had opened them."""
        for row in self._tables.deliveries[sink].values():
            if row.status == "dead":
                yield self._tables.events[row.event].id, row.replay is not None


class SimulatedOwnership:
    """Fulfils `Ownership` and `Fences` for one relay."""

    def __init__(self, tables: Tables, member: UUID, *, lost: Lost) -> None:
        self.id = member
        self._tables = tables
        self._lost = lost
        self._fences: dict[str, int] = {}

    def acquired(self, sink: str, number: int) -> None:
        self._fences[sink] = number

    def released(self, sink: str) -> None:
        self._fences.pop(sink, None)

    def holds(self, sink: str) -> bool:
        return sink in self._fences

    def may_send(self, sink: str) -> bool:
        number = self._fences.get(sink)
        if number is None:
            return False
        is_held = self._tables.ownership[sink] == Ownership(self.id, number)
        if not is_held:
            # The holder's deadline passes before another relay may take the sink.
            self._lost(sink)
        return is_held

    def fence(self, sink: str) -> Fence:
        return Fence(self.id, HISTORY, self._fences.get(sink, 0))

    def lost(self, sink: str, fence: Fence) -> None:
        if self._fences.get(sink) == fence.number:
            self._lost(sink)

    def configure(self, sinks: object) -> None:
        """The scenario knows them."""

    def statuses(self) -> Mapping[str, SinkStatus]:
        return {}


class SinkStates:
    """The states that relays have recorded; `tests/store/test_sink_states.py` is about the SQL."""

    def __init__(self, tables: Tables, leaser: "Connection", writer: "Connection") -> None:
        self._tables = tables
        self._leaser = leaser
        self._writer = writer

    async def note(self, changes: Mapping[str, Change], *, now_ms: int) -> None:
        def note(_: object) -> None:
            for sink, (state, since_ms) in changes.items():
                known = self._tables.sink_states[sink]
                if known and known[-1].state == state:
                    continue
                is_later = since_ms is not None and since_ms > (known[-1].at if known else 0)
                at_ms = min(since_ms, now_ms) if since_ms is not None and is_later else now_ms
                known.append(StateChange(at_ms, state))

        await self._writer.read(note)

    async def left(self, sinks: Collection[str]) -> Mapping[str, LeftState]:
        def read(_: object) -> dict[str, LeftState]:
            return {sink: left for sink in sinks if (left := self._left(sink)) is not None}

        return await self._leaser.read(read)

    def _left(self, sink: str) -> LeftState | None:
        known = [each for each in self._tables.sink_states[sink] if each.state is not None]
        if not known or (last := known[-1].state) is None:
            return None
        others = (number for number, each in enumerate(known, 1) if each.state != last)
        since_ms = known[max(others, default=0)].at
        shown = [each.state for each in known if each.state in ("active", "parked")]
        return LeftState(last, since_ms, shown[-1:] == ["parked"])


class PausedSinks:
    """The sinks that operators have paused."""

    def __init__(self, tables: Tables, connection: "Connection") -> None:
        self._tables = tables
        self._connection = connection

    async def pause(self, sink: str, *, now_ms: int) -> None:
        await self._connection.read(lambda db: self._tables.paused.setdefault(sink, now_ms))

    async def resume(self, sink: str) -> None:
        with suppress(KeyError):
            await self._connection.read(lambda db: self._tables.paused.pop(sink))

    async def retry(self, sink: str) -> None:
        """Its dispatcher is of the same relay."""

    async def all(self) -> Mapping[str, int]:
        return await self._connection.read(lambda db: dict(self._tables.paused))
