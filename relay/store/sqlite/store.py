"""The store on SQLite: one connection writes for all concurrent callers, the others only read.

One process holds the store, so leases are kept in memory: after a crash all pending deliveries are
due again. A lease on disk would cost a write per send, and an expiry to wait for after a crash.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from msgspec.structs import replace

from relay.core.clock import Clock
from relay.core.delivery import Delivery, Settlement, Status
from relay.core.errors import StoreBroken, StoreMoved, StoreUnavailable
from relay.core.event import Event, Outcome, Unreadable
from relay.core.request_budget import ProcessBudgets
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store import (
    Backlog,
    EngineVersion,
    FirstDue,
    LeasedBatch,
    Offer,
    Space,
    StoreSettings,
    StoreWarning,
    Tier,
    tiers,
)
from relay.store.audit import Audit
from relay.store.integrity import Inspections
from relay.store.overview import Overview, overview
from relay.store.ownership import SoleOwner
from relay.store.paused_sinks import PausedSinks
from relay.store.personal_data import PersonalData
from relay.store.search import Search
from relay.store.sessions import Sessions
from relay.store.sink_states import SinkStates
from relay.store.sqlite import accept as acceptance
from relay.store.sqlite import (
    disk,
    driver,
    due,
    preflight,
    queries,
    retention,
    search,
)
from relay.store.sqlite import settle as settling
from relay.store.sqlite.absences import SqliteAbsences
from relay.store.sqlite.audience import SqliteAudience
from relay.store.sqlite.backup import SqliteBackups
from relay.store.sqlite.dead_letters import SqliteDeadLetters
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.events import SqliteEvents
from relay.store.sqlite.files import Files
from relay.store.sqlite.filter_builder import FilterBuilder
from relay.store.sqlite.group_commit import Statement
from relay.store.sqlite.handover import hand_over
from relay.store.sqlite.integrity import check, inspect
from relay.store.sqlite.personal_data import (
    SqliteErasureLog,
    SqlitePersonalDataRemoval,
    SqlitePersonalDataSearch,
)
from relay.store.sqlite.quarantine import SqliteQuarantine
from relay.store.sqlite.reconstructions import SqliteReconstructions
from relay.store.sqlite.replays import SqliteReplays, replaying
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.shared import Shared
from relay.store.sqlite.withdrawals import Withdrawals
from relay.store.statistics import Statistics
from relay.store.totals import Totals
from relay.store.unreadable import UnreadableRequests

T = TypeVar("T")

_SETTLE = Statement(settling.settle, rows=settling.rows_of)


class SqliteStore:
    """Fulfils `relay.store.Store`; made by `open_store`."""

    def __init__(
        self,
        settings: SqliteSettings,
        shared: Shared,
        *,
        clock: Clock,
        held: IO[bytes],
        files: Files,
        accept: acceptance.Acceptance,
        filters: FilterBuilder,
        totals: Totals,
        counted: Callable[[Total], None],
        unclean: bool,
    ) -> None:
        self.path = disk.real(Path(settings.path))
        self.location = str(self.path)
        self.folder = str(self.path.parent)
        self.version = EngineVersion("sqlite", driver.VERSION)
        self._min_free = settings.min_free
        self.unclean = unclean
        self.clock = clock
        self._held = held
        self._files = files
        self._accept = Statement(accept.numbered, gathers=True)
        self._rehearse = accept.rehearse
        self.filters = filters
        self._totals = totals
        self._counted = counted
        self._shared = shared
        self._writer = shared.writer
        self._wiper = shared.wiper
        self._leased = shared.leased
        self._tallies = shared.tallies
        self._sweep = retention.Sweep(settings)
        self._swept = False
        self._expire_to: int | None = None
        """The last event when the round of retention began; later ones need not be counted."""
        self._withdrawals = Withdrawals(shared)
        self.ownership = SoleOwner()
        self.events = SqliteEvents(shared)
        self.dead_letters = SqliteDeadLetters(shared)
        self.replays = SqliteReplays(shared, self._withdrawals)
        self.paused_sinks = PausedSinks(shared)
        self.search = Search(shared.pager, shared.conditions, search.INDEXES, clock)
        self.audit = Audit(shared)
        self.absences = SqliteAbsences(shared)
        self.audience = SqliteAudience(shared)
        self.reconstructions = SqliteReconstructions(shared, accept, self.audience)
        self.statistics = Statistics(shared, clock, last=self.events.newest)
        self.personal_data = PersonalData(
            shared,
            search=SqlitePersonalDataSearch(shared),
            removal=SqlitePersonalDataRemoval(shared),
            erasures=SqliteErasureLog(shared),
            events=self.events,
            clock=clock,
        )
        self.unreadable = UnreadableRequests(shared)
        self.quarantine = SqliteQuarantine(shared)
        self.sessions = Sessions(shared)
        self.request_budgets = ProcessBudgets(monotonic=clock.monotonic)
        self.sink_states = SinkStates(shared, skew_ms=0)
        self.backups = SqliteBackups(self.path, min_free=settings.min_free)
        self.inspections = Inspections(partial(inspect, self.path))

    async def size_bytes(self) -> int:
        return disk.size_bytes(self.path)

    def space(self) -> Space:
        return Space(
            free_bytes=disk.free_bytes(self.path),
            min_free_bytes=self._min_free,
            log_bytes=self._files.log_bytes(),
        )

    def adopted(self, settings: StoreSettings) -> AbstractAsyncContextManager[None]:  # noqa: ARG002  none of its keys can change
        return nullcontext()

    def warnings(self) -> Sequence[StoreWarning]:
        return preflight.warnings(self.path)

    def totals(self, source: str) -> Iterable[Total]:
        return self._totals.of_source(source)

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        stored: Callable[[Outcome], None],
        offer: Offer | None = None,
    ) -> Outcome:
        self._shared.room.require()
        total = self._totals.of(event)

        def done(outcome: Outcome, verdicts: Sequence[Verdict] = verdicts) -> None:
            if outcome == "accepted":
                total.add(event.received_ms)
                self._counted(total)
                self._shared.count_new(verdicts)
                self.filters.start()
            stored(outcome)

        def added(result: tuple[Outcome, int]) -> None:
            outcome, seq = result
            if outcome == "accepted" and offer is not None:
                hand_over(self._leased, seq, event, verdicts, offer)
            done(outcome)

        outstanding = self._shared.outstanding
        known = outstanding.find(event) if outstanding else None
        if known is not None:
            return await self.reconstructions.supersede((event, verdicts, total), known, done)
        outcome, _ = await self._writer.submit(self._accept, (event, verdicts, total), added)
        return outcome

    async def keep(self, unreadable: Unreadable, stored: Callable[[Outcome], None]) -> Outcome:
        self._shared.room.require()
        return await self._writer.submit(acceptance.keep, unreadable, stored)

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> LeasedBatch:
        # Excludes the leases from before the read: a delivery that is settled during the read is
        # no longer leased, but the reader may still see it as pending.
        find = partial(
            queries.due,
            sink=sink,
            now_ms=now_ms,
            limits=limits,
            leased=frozenset(self._leased[sink]),
            cancelled=frozenset(self._shared.cancelled),
        )
        lease = await self._read(self._shared.leaser, find)
        # Meanwhile another lease may have taken some, and an operator may have cancelled a replay.
        held = frozenset(self._leased[sink])

        def is_free(delivery: Delivery) -> bool:
            return (
                delivery.seq not in held
                and delivery.replay not in self._shared.cancelled
                and not self._shared.is_withdrawn(delivery)
            )

        free = tuple(filter(is_free, lease.deliveries))
        damaged = tuple(filter(is_free, lease.damaged))
        self._leased[sink].update(delivery.seq for delivery in (*free, *damaged))
        return replace(lease, deliveries=free, damaged=damaged)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._leased[delivery.sink].discard(delivery.seq)
        self._withdrawals.start(delivery.replay for delivery in deliveries)

    async def settle(self, *settlements: Settlement) -> None:
        def done(statuses: Sequence[Status | None]) -> None:
            for settlement, status in zip(settlements, statuses, strict=True):
                delivery = settlement.delivery
                self._leased[delivery.sink].discard(delivery.seq)
                if status is not None:
                    self._tallies[delivery.sink][Status.PENDING] -= 1
                    self._tallies[delivery.sink][status] += 1
                    self._shared.ended[delivery.sink] += status is not Status.PENDING

        await self._writer.submit(_SETTLE, settlements, done)

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        count, last = 0, await self._read(self._shared.reader, acceptance.last_number)
        late = tiers.spans(beyond_ms=beyond_ms, to_ms=to_ms, now_ms=now_ms)
        # Those that wait for their turn first: one that gets it meanwhile is still ahead.
        for span in (*(each.held for each in late), *late):
            ahead: tiers.Position | None = span.end
            while ahead is not None:
                if only is None:
                    later = partial(due.later, sink=sink, span=span, ahead=ahead, last=last)
                    events, ahead = await self._read(self._shared.reader, later)
                else:
                    events, ahead = f"[{only}]", None
                if events != "[]":
                    forward = partial(
                        due.bring_forward, sink=sink, span=span, events=events, now_ms=now_ms
                    )
                    count += await self._writer.transact(forward)
        return count

    def is_leased(self, sink: str, seq: int) -> bool:
        return self._shared.is_leased(sink, seq)

    async def reclaim(self, sink: str) -> None:
        # Settlements are written in order, even if their callers were cancelled.
        await self._writer.catch_up()
        self._leased[sink].clear()
        self._withdrawals.start(self._shared.cancelled)

    async def backlogs(self) -> Mapping[str, Backlog]:
        waiting = [sink for sink, tally in self._tallies.items() if tally[Status.PENDING]]
        now_ms = self.clock.now_ms()

        def find(db: sqlite3.Connection) -> tuple[Mapping[str, int], Mapping[str, int]]:
            return queries.oldest(db, waiting), queries.retrying(db, waiting, now_ms=now_ms)

        oldest, retrying = await self._read(self._shared.reader, find)
        # A receipt in the future, from a clock that was ahead, would give a negative age.
        received = {sink: min(ms, now_ms) for sink, ms in oldest.items()}
        return {
            sink: Backlog(
                tally[Status.PENDING],
                tally[Status.DEAD],
                received.get(sink),
                retrying.get(sink, 0),
                self._shared.ended[sink],
            )
            for sink, tally in self._tallies.items()
        }

    async def first_due(self, sinks: Mapping[str, int], *, now_ms: int) -> Mapping[str, FirstDue]:
        cancelled = frozenset(self._shared.cancelled)
        return await self._shared.reader.read(
            lambda db: queries.first_due(db, sinks, now_ms=now_ms, cancelled=cancelled)
        )

    async def overview(self, sinks: Collection[str]) -> Overview:
        return await self._shared.reader.read(
            lambda db: overview(db, sinks, replaying_ms=replaying(db))
        )

    async def probe(self, *, size: int) -> None:
        self._shared.room.require()
        await self._writer.submit(self._probe, size)

    def _probe(self, db: sqlite3.Connection, sizes: Sequence[int]) -> Sequence[None]:
        results = self._rehearse(db, sizes)
        queries.remember(db, "probed", self.clock.now_ms())
        return results

    async def respond(self) -> None:
        # Not `submit`, which raises at once if the queue is full because the disk hangs.
        await self._writer.run_exclusive(lambda _: None)

    async def expire(self, *, now_ms: int) -> bool:
        if self._expire_to is None:
            self._expire_to = await self.audience.last_event()
        if await self.audience.count(upto=self._expire_to):
            return True
        find = partial(self._sweep.find, now_ms=now_ms)
        step = await self._read(self._shared.reader, find)
        if step.rows:
            self._swept = True
            for sink, count in (await self._writer.transact(step.remove)).items():
                self._tallies[sink][Status.DEAD] -= count
        if self._swept and not step.more:
            self._swept = False
            self._wiper.start()
        if not step.more:
            self._expire_to = None
        return step.more

    async def _read(
        self, connection: driver.Connection, work: Callable[[sqlite3.Connection], T]
    ) -> T:
        try:
            return await connection.read(work)
        except StoreBroken as error:
            self._writer.mark_broken(error)
            raise

    async def inspect(self) -> None:
        faults = await check(self.path)
        if faults:
            damage = StoreBroken(f"the store {self.path} is damaged: {faults[0]}")
            self._writer.mark_broken(damage)
            raise damage
        self.unclean = False

    async def close(self) -> None:
        await self.inspections.close()
        async with AsyncExitStack() as closing:
            closing.callback(self._held.close)
            # Only after SQLite has closed them.
            closing.callback(self._files.close)
            closing.callback(self._wiper.release)
            closing.push_async_callback(self._close_connections)
            closing.push_async_callback(self._wiper.close)
            closing.push_async_callback(self._withdrawals.close)
            closing.push_async_callback(self.filters.close)
            if self._writer.broken is None and not self.unclean:
                await self._mark_clean()

    async def _close_connections(self) -> None:
        # Running queries are interrupted, because a search can take minutes.
        shared = self._shared
        readers = shared.pager, shared.searcher, shared.reader
        closes = [*(each.cut_off for each in readers), shared.leaser.close]
        # The last connection to close checkpoints the log, which a reader cannot do. A damaged log
        # is left to the next start; a removed one is still open here, and this saves its content.
        is_log_good = self._writer.broken is None or isinstance(self._writer.broken, StoreMoved)
        closes.insert(len(closes) if is_log_good else 0, self._writer.close)
        async with AsyncExitStack() as closing:
            for close in reversed(closes):
                closing.push_async_callback(close)

    async def _mark_clean(self) -> None:
        """Raises StoreBroken if the last check of the files finds damage."""
        # Without the mark, the next start only reads the whole file.
        with suppress(StoreUnavailable):
            await self._writer.execute(queries.REMEMBER, ("clean", 1))
