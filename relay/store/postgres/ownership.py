"""Ownership of sinks in a cluster: runs the planner's statements, and drives the dispatchers."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from random import SystemRandom
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from relay.core.clock import ClockSample, boottime_ns
from relay.core.cluster import statements
from relay.core.cluster.leases import OwnershipLease
from relay.core.cluster.planning import Planner
from relay.core.cluster.statements import Answer, Poll, Polled, Statement, Surveyed
from relay.core.cluster.timing import ANSWER_TIMEOUT_S, RETRY_S
from relay.core.config_values import Duration
from relay.core.errors import StoreTooNew, StoreUnavailable
from relay.core.sink_status import SinkStatus
from relay.store.migrations import Schema
from relay.store.ownership import (
    MAINTENANCE,
    RECONSTRUCTIONS,
    ApplyOrders,
    Cluster,
    Dispatching,
    Introduction,
)
from relay.store.postgres import members, orders
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import psycopg
from relay.store.postgres.fences import Fence
from relay.store.postgres.leases import Leases as Leased
from relay.store.postgres.notifications import Notifications
from relay.telemetry import log

HANDOVER_S = 5.0
"""Longest time that sends in flight have at a handover."""

LEAVE_S = 5.0
"""Longest wait for the database when this relay leaves."""

_ADVICE_CLOCK_SET = (
    "the database's clock was set, or a server with another clock took over; compare the clocks of "
    "the database servers"
)

_NONE = statements.Fence("", 0)
_UNKNOWN = Introduction(name="", version="", revision="", address="", config="")


def boottime_s() -> float:
    return boottime_ns() / 1e9


class PostgresOwnership:
    """Fulfils `relay.store.ownership.Ownership` with rows of the database."""

    def __init__(
        self,
        control: Connection,
        poller: Connection,
        reader: Connection,
        leased: Leased,
        *,
        synchronize: Callable[[ClockSample], int] = lambda _: 0,
        on_reconstructions: Callable[[], None] = lambda: None,
        require_served: Callable[[Schema], None] = lambda _: None,
        now_s: Callable[[], float] = boottime_s,
    ) -> None:
        """`control` and `poller` are used by nothing else, so that nothing delays them.

        `synchronize` is passed samples of the database's clock, and returns the step that the
        store's clock made. `on_reconstructions` is called when another relay has made some.
        `require_served` raises StoreTooNew for a schema that is not for this relay.
        """
        self._control = control
        self._poller = Notifications(poller, heard=self._announced)
        self._reader = reader
        self._leased = leased
        self._synchronize = synchronize
        self._on_reconstructions = on_reconstructions
        self._require_served = require_served
        self._now_s = now_s
        self.id = uuid4()
        """Identifies this process in the database."""
        self._log = log.get()
        self._me = _UNKNOWN
        self._planner = Planner(str(self.id), (), random=SystemRandom())
        self._fences: dict[str, statements.Fence] = {}
        """Sinks that are being dispatched, or were until a moment ago."""
        self._changes: dict[str, asyncio.Task[None]] = {}
        """Sinks of which the dispatching begins or ends."""
        self._elsewhere: Mapping[str, SinkStatus] = {}
        self._news: members.News | None = None
        self._orders: orders.Orders | None = None
        """As of the last survey."""
        self._surveyed = asyncio.Event()
        self._changed = asyncio.Event()
        self._left = asyncio.Event()
        self._outdated: asyncio.Future[StoreTooNew] = asyncio.get_running_loop().create_future()
        self._dispatching: Dispatching | None = None
        """The sinks' dispatchers; None before and after `run`."""

    def holds(self, sink: str) -> bool:
        return sink in self._fences

    def may_send(self, sink: str) -> bool:
        fence = self._fences.get(sink)
        return fence is not None and self._planner.may_send(sink, fence, self._now_s())

    def fence(self, sink: str) -> Fence:
        """Return the present fence of a sink; one that the database refuses if it has none."""
        fence = self._fences.get(sink, _NONE)
        return Fence(self.id, fence.history, fence.number)

    def lost(self, sink: str, fence: Fence) -> None:
        """Note that the database refused a settlement under this fence."""
        self._planner.fenced(sink, statements.Fence(fence.history, fence.number))
        self._changed.set()

    def introduce(self, me: Introduction) -> None:
        self._me = me

    def configure(self, sinks: Iterable[str]) -> None:
        self._planner.configure((*sinks, MAINTENANCE))
        self._changed.set()

    def statuses(self) -> Mapping[str, SinkStatus]:
        return self._elsewhere

    async def cluster(self) -> Cluster:
        return await self._reader.read(lambda db: members.cluster(db, self.id))

    async def run(self, dispatching: Dispatching, apply_orders: ApplyOrders) -> None:
        self._dispatching = dispatching
        try:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow_orders(apply_orders))
                while not self._planner.has_left:
                    self._changed.clear()
                    for statement in self._planner.plan(self._now_s()):
                        group.create_task(self._send(statement, dispatching))
                    self._follow(group, dispatching)
                    await self._wait()
                following.cancel()
        finally:
            self._dispatching = None
            self._left.set()

    async def leave(self) -> None:
        if self._dispatching is None:
            return
        self._planner.leave()
        self._changed.set()
        # Without an answer, the leases expire by themselves.
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._left.wait()

    async def close(self) -> None:
        """Close the connections that nothing else uses."""
        await self._control.cut_off()
        await self._poller.close()

    async def _follow_orders(self, apply_orders: ApplyOrders) -> None:
        """ApplyOrders what was ordered since the last time; at first all, because it may be new."""
        applied: orders.Orders | None = None
        while True:
            await self._surveyed.wait()
            self._surveyed.clear()
            if not self._poller.is_listening:
                self._on_reconstructions()
            now = self._orders
            if now is None or now == applied:
                continue
            # Another relay may have brought deliveries forward.
            self._leased.walk_again()
            try:
                await apply_orders(() if applied is None else orders.retried(applied, now))
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
            else:
                applied = now
                self._planner.beat_soon()
                self._changed.set()

    async def _wait(self) -> None:
        timeout_s = max(0.0, self._planner.due_s() - self._now_s())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _follow(self, group: asyncio.TaskGroup, dispatching: Dispatching) -> None:
        """Begin and end dispatching as the leases say."""
        for lease in tuple(self._planner.leases):
            if lease.sink in self._changes:
                continue
            if lease.state == "held" and lease.sink not in self._fences:
                self._fences[lease.sink] = lease.fence
                self._change(group, lease.sink, self._begin(lease.sink, dispatching))
            elif lease.state != "held" and not lease.drained:
                self._change(group, lease.sink, self._end(lease, dispatching))

    def _change(self, group: asyncio.TaskGroup, sink: str, work: Awaitable[None]) -> None:
        async def change() -> None:
            try:
                await work
            finally:
                del self._changes[sink]
                self._changed.set()

        self._changes[sink] = group.create_task(change())

    async def _begin(self, sink: str, dispatching: Dispatching) -> None:
        try:
            await dispatching.begin(sink)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
            # It begins again, if it is still held.
            del self._fences[sink]

    async def _end(self, lease: OwnershipLease, dispatching: Dispatching) -> None:
        # What outlasts the trust would overlap with the next owner's sends.
        left_s = min(HANDOVER_S, lease.deadline_s - self._now_s())
        grace = Duration(0 if lease.state == "lost" else max(0, int(left_s * 1000)))
        await dispatching.end(lease.sink, grace=grace)
        self._fences.pop(lease.sink, None)
        self._planner.drained(lease.sink, lease.fence)

    def accepted(self, sinks: Collection[str]) -> None:
        """Tell the other relays of new deliveries; those of this one are awake already."""
        if self._dispatching is not None:
            self._planner.announced(())
            if elsewhere := [sink for sink in sinks if sink not in self._fences]:
                self._poller.send(elsewhere)

    def reconstructed(self) -> None:
        """Tell the other relays of new reconstructions."""
        if self._dispatching is not None:
            self._poller.send([RECONSTRUCTIONS])

    def _announced(self, sinks: Collection[str] | None) -> None:
        if sinks is None or RECONSTRUCTIONS in sinks:
            self._on_reconstructions()
        if self._dispatching is not None:
            for sink in self._planner.announced(sinks):
                self._dispatching.wake(sink)

    async def _send(self, statement: Statement, dispatching: Dispatching) -> None:
        connection = self._poller if isinstance(statement, Poll) else self._control
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._ask(statement, dispatching)
        except (TimeoutError, psycopg.Error) as error:
            if isinstance(error, TimeoutError):
                connection.hang_up()
            self._planner.lost(statement, self._now_s())
        else:
            for sink in self._planner.answered(statement, answer, self._now_s()):
                dispatching.wake(sink)
        self._planner.listens(self._now_s(), is_listening=self._poller.is_listening)
        self._changed.set()

    async def _ask(self, statement: Statement, dispatching: Dispatching) -> Answer:
        if isinstance(statement, Poll):
            is_news = self._differs(await self._poller.run(members.news))
            return Polled(frozenset(statement.sinks) if is_news else frozenset())
        statuses = {
            sink: msgspec.json.encode(status).decode()
            for sink, status in dispatching.statuses().items()
            if sink in self._fences
        }
        work = partial(members.run, statement=statement, me=self._me, statuses=statuses)
        seen = await self._control.run(work)
        if seen.orders is not None:
            self._orders = seen.orders
            self._surveyed.set()
        if seen.schema is not None:
            self._check(seen.schema)
        if seen.sample is not None and (step_ms := self._synchronize(seen.sample)):
            self._log.warning("store.clock_set", seconds=step_ms / 1000, advice=_ADVICE_CLOCK_SET)
            # Other deliveries are due now, or all are due later than they should be.
            for sink in self._fences:
                dispatching.wake(sink)
        if seen.statuses is not None:
            elsewhere = _decoded(seen.statuses)
            self._elsewhere = {
                sink: status for sink, status in elsewhere if sink not in self._fences
            }
        if isinstance(seen.answer, Surveyed) and seen.news is not None:
            return msgspec.structs.replace(seen.answer, is_news=self._differs(seen.news))
        return seen.answer

    def _check(self, schema: Schema) -> None:
        try:
            self._require_served(schema)
        except StoreTooNew as error:
            if not self._outdated.done():
                self._outdated.set_result(error)

    async def outdated(self) -> StoreTooNew:
        return await asyncio.shield(self._outdated)

    def on_outdated(self, refuse: Callable[[StoreTooNew], None]) -> None:
        """Have this called at once when the schema is not for this relay any more."""
        self._outdated.add_done_callback(lambda outdated: refuse(outdated.result()))

    def _differs(self, news: members.News) -> bool:
        """Whether there is something new since the last look."""
        before, self._news = self._news, news
        return news != before


def _decoded(statuses: Mapping[str, str]) -> Iterator[tuple[str, SinkStatus]]:
    """Leave out those that a relay of another version writes in another way."""
    for sink, text in statuses.items():
        with suppress(msgspec.DecodeError):
            yield sink, replace(msgspec.json.decode(text, type=SinkStatus), is_elsewhere=True)
