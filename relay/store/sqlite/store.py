"""The store on SQLite: one connection writes for all concurrent callers, the others only read.

One process holds the store, so leases are kept in memory: after a crash all pending deliveries are
due again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from relay.core.clock import Clock
from relay.core.delivery import Delivery, Settlement, Status
from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreMoved, StoreUnavailable
from relay.core.event import Event, Outcome, Unreadable
from relay.core.request_budget import ProcessBudgets
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store import (
    Backlog,
    EngineVersion,
    Lease,
    Offer,
    Space,
    StoreWarning,
    Tier,
    tiers,
)
from relay.store.ownership import SoleOwner
from relay.store.sqlite import accept as acceptance
from relay.store.sqlite import (
    disk,
    driver,
    due,
    id_periods,
    keys,
    operator_writes,
    ordering,
    queries,
    reconstruct,
    retention,
    schema,
    search,
    secure_delete,
)
from relay.store.sqlite import settle as settling
from relay.store.sqlite.absences import SqliteAbsences
from relay.store.sqlite.audience import SqliteAudience, recognize
from relay.store.sqlite.audit import SqliteAudit
from relay.store.sqlite.backup import SqliteBackups
from relay.store.sqlite.driver import Connection, open_reader, open_writer, sqlite3
from relay.store.sqlite.errors import classify, may_lack_room
from relay.store.sqlite.files import Files
from relay.store.sqlite.filter_builder import FilterBuilder
from relay.store.sqlite.group_commit import GroupCommit, Statement, transaction
from relay.store.sqlite.handover import hand_over
from relay.store.sqlite.integrity import SqliteInspections, check
from relay.store.sqlite.known_ids import KnownIds
from relay.store.sqlite.login_limits import SqliteLoginLimits
from relay.store.sqlite.operations import SqliteOperations
from relay.store.sqlite.outstanding import Outstanding
from relay.store.sqlite.personal_data import SqlitePersonalDataSteps
from relay.store.sqlite.quarantine import SqliteQuarantine
from relay.store.sqlite.reconstructions import SqliteReconstructions
from relay.store.sqlite.secure_delete import Wiper
from relay.store.sqlite.sessions import SqliteSessions
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.shared import Shared
from relay.store.sqlite.sink_states import SqliteSinkStates
from relay.store.sqlite.statistics import SqliteSteps
from relay.store.sqlite.totals import totals as read_totals
from relay.store.sqlite.unreadable import SqliteUnreadable
from relay.store.sqlite.withdrawals import Withdrawals
from relay.store.stepwise_personal_data import StepwisePersonalData
from relay.store.stepwise_search import StepwiseSearch
from relay.store.stepwise_statistics import StepwiseStatistics
from relay.store.totals import Totals

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
        self._clock = clock
        self._held = held
        self._files = files
        self._accept = Statement(accept.numbered)
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
        self._withdrawals = Withdrawals(shared)
        self.ownership = SoleOwner()
        self.operations = SqliteOperations(shared, self._withdrawals)
        self.search = StepwiseSearch(shared.pager, search.QUERIES, clock)
        self.audit = SqliteAudit(shared)
        self.absences = SqliteAbsences(shared)
        self.reconstructions = SqliteReconstructions(shared, accept)
        self.audience = SqliteAudience(shared)
        self.statistics = StepwiseStatistics(SqliteSteps(shared), clock)
        self.personal_data = StepwisePersonalData(SqlitePersonalDataSteps(shared), shared.digests)
        self.unreadable = SqliteUnreadable(shared)
        self.quarantine = SqliteQuarantine(shared)
        self.sessions = SqliteSessions(shared)
        self.login_limits = SqliteLoginLimits(clock)
        self.request_budgets = ProcessBudgets(monotonic=clock.monotonic)
        self.sink_states = SqliteSinkStates(shared)
        self.backups = SqliteBackups(self.path, min_free=settings.min_free)
        self.inspections = SqliteInspections(self.path)

    async def size_bytes(self) -> int:
        return disk.size_bytes(self.path)

    def space(self) -> Space:
        return Space(
            free_bytes=disk.free_bytes(self.path),
            min_free_bytes=self._min_free,
        )

    def warnings(self) -> Sequence[StoreWarning]:
        warnings = []
        if driver.has_wal_reset_fault():
            fields = {"sqlite": driver.VERSION, "advice": _WAL_RESET_ADVICE}
            warnings.append(StoreWarning("store.sqlite_fault", fields))
        network = disk.network_file_system(self.path)
        if network is not None:
            fields = {"path": str(self.path), "reason": network}
            warnings.append(StoreWarning("store.network_file_system", fields))
        return warnings

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

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> Lease:
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
        lease = await self._read(find)
        # Meanwhile another lease may have taken some, and an operator may have cancelled a replay.
        held = frozenset(self._leased[sink])

        def is_free(delivery: Delivery) -> bool:
            return (
                delivery.seq not in held
                and delivery.replay not in self._shared.cancelled
                and delivery.seq not in self._shared.superseded
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

        await self._writer.submit(_SETTLE, settlements, done)

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        count = 0
        for span in tiers.spans(beyond_ms=beyond_ms, to_ms=to_ms, now_ms=now_ms):
            later = partial(due.later, sink=sink, span=span)
            while True:
                events = await self._read(later) if only is None else f"[{only}]"
                if events == "[]":
                    break
                forward = partial(
                    due.bring_forward, sink=sink, span=span, events=events, now_ms=now_ms
                )
                count += await self._writer.transact(forward)
                if only is not None:
                    break
        return count

    def is_leased(self, sink: str, seq: int) -> bool:
        return seq in self._leased[sink]

    async def reclaim(self, sink: str) -> None:
        # Settlements are written in order, even if their callers were cancelled.
        await self._writer.catch_up()
        self._leased[sink].clear()
        self._withdrawals.start(self._shared.cancelled)

    async def backlogs(self) -> Mapping[str, Backlog]:
        waiting = [sink for sink, tally in self._tallies.items() if tally[Status.PENDING]]
        oldest = await self._read(lambda db: queries.oldest(db, waiting))
        # A receipt in the future, from a clock that was ahead, would give a negative age.
        now_ms = self._clock.now_ms()
        received = {sink: min(ms, now_ms) for sink, ms in oldest.items()}
        return {
            sink: Backlog(tally[Status.PENDING], tally[Status.DEAD], received.get(sink))
            for sink, tally in self._tallies.items()
        }

    async def probe(self, *, now_ms: int) -> None:
        self._shared.room.require()
        await self._writer.execute(queries.REMEMBER, "probed", now_ms)

    async def respond(self) -> None:
        # Not `submit`, which raises at once if the queue is full because the disk hangs.
        await self._writer.run_exclusive(lambda _: None)

    async def expire(self, *, now_ms: int) -> bool:
        if await self.audience.count():
            return True
        step = await self._read(lambda db: self._sweep.find(db, now_ms=now_ms))
        if step.rows:
            self._swept = True
            for sink, count in (await self._writer.transact(step.remove)).items():
                self._tallies[sink][Status.DEAD] -= count
        if self._swept and not step.more:
            self._swept = False
            self._wiper.start()
        return step.more

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._shared.leaser.read(work)
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
            await self._writer.execute(queries.REMEMBER, "clean", 1)


async def open_store(
    settings: SqliteSettings,
    *,
    clock: Clock,
    committed: Callable[[float], None] = lambda _: None,
    counted: Callable[[Total], None] = lambda _: None,
) -> SqliteStore:
    """Lock, open and migrate the store.

    `committed` is passed the seconds of each transaction, and `counted` the total that a new event
    is part of, once that is on disk.

    Raises StoreLocked, StoreExposed, StoreTooNew, StoreFull, and StoreBroken for a file that cannot
    be opened.
    """
    path = Path(settings.path)
    async with AsyncExitStack() as opened:
        try:
            disk.make_folder(path)
            held = opened.enter_context(disk.lock(path))
            disk.make_file(path)
            disk.require_single(path)
            connection = await open_writer(path)
            opened.push_async_callback(connection.close)
            unclean = await connection.run(lambda db: _begin(db, path, now_ms=clock.now_ms()))
            readers: list[Connection] = []
            for _ in range(4):
                readers.append(await open_reader(path))
                opened.push_async_callback(readers[-1].close)
            leaser, reader, searcher, pager = readers
            tallies = await leaser.run(queries.tallies)
            totals = await leaser.run(read_totals)
            turns = await connection.run(ordering.ordering_keys)
            digests, tokens = await connection.run(keys.digests)
            for each in (reader, searcher, pager):
                await each.run(partial(recognize, digests=digests))
            last = await leaser.run(acceptance.last_number)
            ids = await connection.run(lambda db: KnownIds.of_store(db, id_periods.of(last + 1)))
            damage = await _recall(ids, connection)
            outstanding = await leaser.run(Outstanding.of_store)
            unwiped = await reader.run(secure_delete.is_unfinished)
            files = Files(path)
            opened.callback(files.close)
        except (OSError, sqlite3.Error) as error:
            raise _opening_error(path, error) from None

        def recorded(seconds: float) -> None:
            ids.recent.commit()
            committed(seconds)

        writer = GroupCommit(
            connection,
            clock=clock,
            committed=recorded,
            files=files,
            rolled_back=ids.recent.roll_back,
        )
        real = disk.real(path)
        shared = Shared(
            leaser=leaser,
            reader=reader,
            searcher=searcher,
            pager=pager,
            writer=writer,
            wiper=Wiper(real, writer, reader, clock=clock),
            room=disk.Room(real, settings.min_free, clock),
            turns=turns,
            digests=digests,
            tokens=tokens,
            outstanding=outstanding,
            tallies=defaultdict(lambda: dict.fromkeys(Status, 0), tallies),
        )
        store = SqliteStore(
            settings,
            shared,
            clock=clock,
            held=held,
            files=files,
            accept=acceptance.Acceptance(turns, ids, last),
            filters=FilterBuilder(ids, writer, reader, shared.room),
            totals=totals,
            counted=counted,
            unclean=unclean,
        )
        if damage is not None:
            writer.mark_broken(damage)
        if unwiped:
            shared.wiper.resume()
        store.filters.start()
        opened.pop_all()
    return store


async def _recall(ids: KnownIds, connection: Connection) -> StoreBroken | None:
    """Return why the newest ids cannot be read; the store then opens, but accepts nothing."""
    try:
        await connection.read(ids.recall)
    except StoreBroken as error:
        return error
    return None


def _opening_error(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    """Tell a full disk, which needs room, from a store that needs a repair."""
    shortage = None
    if isinstance(error, OSError):
        shortage = disk.lack_of_room(error)
    elif isinstance(classify(error), StoreFull):
        shortage = "the disk is full"
    elif may_lack_room(error):
        shortage = disk.shortage(path)
    if shortage is None:
        return StoreBroken(f"the store {path} cannot be opened: {error}")
    return StoreFull(f"the store {path} cannot be opened: {shortage}")


def _begin(db: sqlite3.Connection, path: Path, *, now_ms: int) -> bool:
    """Migrate the schema; True if the last relay did not close the store."""
    schema.migrate(db, now_ms=now_ms, free_bytes=partial(disk.free_bytes, disk.real(path)))
    db.executescript(acceptance.TRIGGER + settling.TRIGGER + ordering.TRIGGER)
    with transaction(db):
        operator_writes.withdraw_all(db)
        db.execute(reconstruct.CUT_OFF)
    unclean = queries.recall(db, "clean") == 0
    queries.remember(db, "clean", 0)
    return unclean


_WAL_RESET_ADVICE = (
    "this SQLite can lose pages where several programs write to the file; relay writes with one "
    "connection only; open it with no other program, or install relay[sqlite]"
)
