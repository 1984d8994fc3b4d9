"""The store on PostgreSQL, which several relays share."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from relay.core.clock import Clock
from relay.core.delivery import Delivery, Settlement
from relay.core.errors import StoreUnavailable
from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store import (
    Backlog,
    EngineVersion,
    FirstDue,
    LeasedBatch,
    Offer,
    StoreSettings,
    StoreWarning,
    Tier,
)
from relay.store.audit import Audit
from relay.store.integrity import Inspections
from relay.store.overview import Overview, overview
from relay.store.ownership import MAINTENANCE
from relay.store.paused_sinks import PausedSinks
from relay.store.personal_data import PersonalData
from relay.store.postgres import accept, due_queries, search, totals
from relay.store.postgres.absences import SKEW_MS, PostgresAbsences
from relay.store.postgres.accept import Acceptance
from relay.store.postgres.access import Access
from relay.store.postgres.audience import PostgresAudience
from relay.store.postgres.backlogs import Backlogs
from relay.store.postgres.backup import PostgresBackups
from relay.store.postgres.connection import Connection
from relay.store.postgres.dead_letters import PostgresDeadLetters
from relay.store.postgres.events import PostgresEvents
from relay.store.postgres.integrity import inspect
from relay.store.postgres.leasing import Leasing
from relay.store.postgres.ownership import PostgresOwnership
from relay.store.postgres.personal_data import (
    PostgresErasureLog,
    PostgresPersonalDataRemoval,
    PostgresPersonalDataSearch,
)
from relay.store.postgres.probe import probe
from relay.store.postgres.quarantine import PostgresQuarantine
from relay.store.postgres.reconstructions import PostgresReconstructions
from relay.store.postgres.replays import PostgresReplays, replaying
from relay.store.postgres.request_budgets import PostgresRequestBudgets
from relay.store.postgres.retention import Sweep
from relay.store.postgres.server import SchemaSize, Server, location
from relay.store.postgres.settings import PostgresSettings
from relay.store.postgres.shared import Shared
from relay.store.postgres.visible_numbers import LastVisible
from relay.store.postgres.withdrawals import Withdrawals
from relay.store.search import Search
from relay.store.sessions import Sessions
from relay.store.sink_states import SinkStates
from relay.store.statistics import Statistics
from relay.store.totals import Totals
from relay.store.unreadable import UnreadableRequests

FOLLOW_EVERY_S = 5.0
"""Interval at which a relay reads what the others have changed."""


class PostgresStore:
    """Fulfils `relay.store.Store`; made by `open_store`."""

    unclean = False
    folder = None

    def __init__(
        self,
        settings: PostgresSettings,
        access: Access,
        shared: Shared,
        *,
        clock: Clock,
        server: Server,
        ownership: PostgresOwnership,
        totals: Totals,
        counted: Callable[[Total], None],
    ) -> None:
        self._access = access
        self._shared = shared
        self.clock = clock
        self._server = server
        self._totals = totals
        self._counted = counted
        self._followed_s = clock.monotonic()
        self._writer = shared.writer
        self._accept = acceptance = Acceptance(shared.turns)
        self._backlogs = Backlogs(shared.reader, shared.fences, shared.ended, clock)
        self._leasing = Leasing(shared, clock)
        self._size = SchemaSize(shared.reader, settings.schema, clock)
        self._expire_to: int | None = None
        """The last event when the round of retention began; later ones need not be counted."""
        self._sweep = Sweep(settings)
        self._withdrawals = Withdrawals(shared)
        self.location = location(settings)
        self.version = EngineVersion("postgres", server.version)
        self.absences = PostgresAbsences(shared)
        self.audience = PostgresAudience(shared)
        self.audit = Audit(shared)
        self.backups = PostgresBackups()
        self.inspections = Inspections(
            partial(inspect, partial(Connection, access), settings.schema)
        )
        self.events = PostgresEvents(shared)
        self.dead_letters = PostgresDeadLetters(shared)
        self.replays = PostgresReplays(shared, self._withdrawals)
        self.paused_sinks = PausedSinks(shared)
        self.ownership = ownership
        self.personal_data = PersonalData(
            shared,
            search=PostgresPersonalDataSearch(shared),
            removal=PostgresPersonalDataRemoval(shared),
            erasures=PostgresErasureLog(shared),
            events=self.events,
            clock=clock,
        )
        self.quarantine = PostgresQuarantine(shared)
        conditions = shared.conditions
        self.search = Search(shared.pager, conditions, search.indexes(conditions), clock)
        self.reconstructions = PostgresReconstructions(
            shared,
            acceptance,
            self.audience,
            note_new=self._note_new,
            on_reconstructions=ownership.reconstructed,
        )
        self.request_budgets = PostgresRequestBudgets(shared)
        self.sessions = Sessions(shared)
        self.sink_states = SinkStates(shared, skew_ms=SKEW_MS)
        self.statistics = Statistics(shared, clock, last=LastVisible(shared.reader).read)
        self.unreadable = UnreadableRequests(shared)

    def warnings(self) -> Sequence[StoreWarning]:
        return self._server.warnings

    @asynccontextmanager
    async def adopted(self, settings: StoreSettings) -> AsyncIterator[None]:
        if not isinstance(settings, PostgresSettings):
            raise TypeError("a reload cannot change the engine")
        dsn = settings.dsn.reveal()
        if self._access.is_current(dsn):
            yield
            return
        check = partial(
            self._server.identity.require, schema=settings.schema, member=self.ownership.id
        )
        async with self._access.changed(dsn, check):
            yield
        self.location = location(settings)

    async def size_bytes(self) -> int:
        return await self._size.measure()

    def space(self) -> None:
        return None

    async def inspect(self) -> None:
        """Do nothing: the server recovers from its own unclean stops."""

    def totals(self, source: str) -> Iterable[Total]:
        return self._totals.of_source(source)

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        stored: Callable[[Outcome], None],
        offer: Offer | None = None,  # noqa: ARG002  a sink may have another owner
    ) -> Outcome:
        if not self._server.encoding.holds(event.id, event.kind):
            raise StoreUnavailable(
                f"the database's encoding {self._server.encoding.name} cannot hold the event's id "
                "or kind"
            )
        total = self._totals.of(event)

        def done(outcome: Outcome, verdicts: Sequence[Verdict] = verdicts) -> None:
            if outcome == "accepted":
                total.add(event.received_ms)
                self._counted(total)
                self._note_new([verdict.sink for verdict in verdicts])
            stored(outcome)

        known = self._shared.outstanding.find(event)
        if known is not None:
            return await self.reconstructions.supersede((event, verdicts, total), known, done)
        return await self._writer.submit(self._accept, (event, verdicts, total), done)

    def _note_new(self, sinks: Collection[str]) -> None:
        """Note the sinks of new deliveries."""
        self._backlogs.note_new(sinks)
        self.ownership.accepted(sinks)

    async def keep(self, unreadable: Unreadable, stored: Callable[[Outcome], None]) -> Outcome:
        return await self._writer.submit(accept.keep, unreadable, stored)

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> LeasedBatch:
        return await self._leasing.lease(sink, now_ms=now_ms, limits=limits)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._leasing.release(deliveries)

    async def settle(self, *settlements: Settlement) -> None:
        await self._leasing.settle(*settlements)

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        return await self._leasing.bring_forward(
            sink, beyond_ms=beyond_ms, to_ms=to_ms, now_ms=now_ms, only=only
        )

    def is_leased(self, sink: str, seq: int) -> bool:
        return self._shared.is_leased(sink, seq)

    async def reclaim(self, sink: str) -> None:
        await self._leasing.reclaim(sink)

    async def backlogs(self) -> Mapping[str, Backlog]:
        await self._follow_others()
        return await self._backlogs.read()

    async def _follow_others(self) -> None:
        """Take over what other relays have counted."""
        now_s = self.clock.monotonic()
        if now_s - self._followed_s >= FOLLOW_EVERY_S:
            self._followed_s = now_s
            for total in self._totals.learn(await self._shared.reader.read(totals.refresh)):
                self._counted(total)

    async def first_due(self, sinks: Mapping[str, int], *, now_ms: int) -> Mapping[str, FirstDue]:
        if not sinks:
            return {}
        return await self._shared.reader.read(
            lambda db: due_queries.first_due(db, sinks, now_ms=now_ms)
        )

    async def overview(self, sinks: Collection[str]) -> Overview:
        return await self._shared.reader.read(
            lambda db: overview(db, sinks, replaying_ms=replaying(db))
        )

    async def probe(self, *, size: int) -> None:
        await self._writer.submit(probe, size)

    async def respond(self) -> None:
        await self._writer.respond()

    async def expire(self, *, now_ms: int) -> bool:
        if not self._shared.fences.holds(MAINTENANCE):
            return False
        if self._expire_to is None:
            self._expire_to = await self.audience.last_event()
        if await self.audience.count(upto=self._expire_to):
            return True
        more = await self._shared.background.transact(
            lambda db: self._sweep.step(db, now_ms=now_ms)
        )
        if not more:
            self._expire_to = None
        return more

    async def close(self) -> None:
        """Close its connections; what has begun is finished."""
        shared = self._shared
        await self.inspections.close()
        async with AsyncExitStack() as closing:
            for each in (shared.pager, shared.searcher, shared.reader):
                closing.push_async_callback(each.cut_off)
            closing.push_async_callback(shared.leaser.close)
            closing.push_async_callback(shared.writer.close)
            closing.push_async_callback(shared.vacuum.close)
            closing.push_async_callback(shared.background.close)
            closing.push_async_callback(self.ownership.close)
            closing.push_async_callback(self._withdrawals.close)
            closing.push_async_callback(shared.outstanding.close)
