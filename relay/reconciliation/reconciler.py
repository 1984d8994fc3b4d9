"""Reconciliation runs: started by an operator or automatically, one at a time."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from relay.core.api_settings import ApiSettings
from relay.core.authentication import SourceSettings
from relay.core.clock import Clock
from relay.core.errors import NotReconciled, RelayError, StoreBroken, StoreError, StoreUnavailable
from relay.core.event import Event
from relay.core.routing import Route, Verdict, match
from relay.reconciliation.outages import Outages
from relay.reconciliation.period import Period
from relay.reconciliation.report import RunReport, explained, words
from relay.reconciliation.reporter import ReconciliationReporter
from relay.store import Store
from relay.store.absences import Absence
from relay.store.ownership import MAINTENANCE
from relay.store.reconstructions import (
    NamedFact,
    ReadPosition,
    ReconstructionOutcome,
    RunRecord,
    RunState,
)

POLL_INTERVAL_S = 10.0
"""Interval of checks for sources that are due for an automatic run."""


class Progress(NamedTuple):
    """What a run is doing."""

    doing: str = "waiting"
    done: int = 0
    total: int = 0
    """0 if it is not known."""


class _Job(msgspec.Struct, eq=False):
    record: RunRecord
    settings: ApiSettings
    period: Period
    events: Collection[str]
    """Kinds that the order asks for; all if it names none."""
    progress: Progress = Progress()
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class Reconciler:
    """Starts, runs and ends reconciliations; a restart ends them too."""

    def __init__(
        self,
        store: Store,
        sources: Sequence[SourceSettings],
        routes: Sequence[Route],
        *,
        reporter: ReconciliationReporter,
        clock: Clock,
        wake: Callable[[str], None],
    ) -> None:
        """`wake` is called with each sink that gets deliveries."""
        self._store = store
        self._sources = {source.name: source for source in sources}
        self._routes = routes
        self._reporter = reporter
        self._clock = clock
        self._wake = wake
        self._jobs: deque[_Job] = deque()
        self._beginning: set[str] = set()
        self._wakeup = asyncio.Event()
        self._outages = Outages(store, reporter=reporter, clock=clock)

    def adopt(self, sources: Sequence[SourceSettings], routes: Sequence[Route]) -> None:
        """Use another config for what begins from now on."""
        self._sources = {source.name: source for source in sources}
        self._routes = routes
        self._wakeup.set()

    @property
    def sources(self) -> Mapping[str, SourceSettings]:
        """The sources that have an API."""
        return {name: each for name, each in self._sources.items() if each.api is not None}

    @property
    def unreconciled(self) -> Mapping[str, Sequence[Absence]]:
        """Absences by source that lost events, and that no run has covered.

        Only of sources with an API, unless `reconcile` is off; as of the last refresh.
        """
        return self._outages.unreconciled

    def progress(self, number: int) -> Progress | None:
        """Return what a run is doing; None if it is over."""
        return next((job.progress for job in self._jobs if job.record.id == number), None)

    def words(self, run: RunRecord) -> Sequence[str]:
        """Return a run's report as sentences, without an address."""
        return () if run.report is None else words(RunReport.read(run.report), dry_run=run.dry_run)

    def named(self, run: RunRecord) -> Sequence[NamedFact]:
        """Return the facts that a run's report names, with their reasons in words."""
        return [explained(fact) for fact in run.named]

    def under_way(self, source: str) -> int | None:
        """Return the number of the source's run that is waiting or running."""
        return next((job.record.id for job in self._jobs if job.record.source == source), None)

    async def begin(
        self,
        source: str,
        *,
        since_ms: int | None,
        until_ms: int | None,
        dry_run: bool,
        events: Collection[str] = (),
    ) -> RunRecord:
        """Start a run; without `since_ms` from the oldest absence that none has covered.

        `events` narrows the kinds that are given back. Raises NotReconciled if there is no such
        absence, or another run is under way, and StoreError.
        """
        found = self._sources.get(source)
        if found is None or found.api is None:
            raise NotReconciled(f"source {source} has no [source.api]")
        if (running := self.under_way(source)) is not None:
            raise NotReconciled(f"run {running} of source {source} is under way")
        if source in self._beginning:
            raise NotReconciled(f"another run of source {source} is beginning")
        self._beginning.add(source)
        try:
            return await self._begin(
                source, found.api, since_ms, until_ms, dry_run=dry_run, events=events
            )
        finally:
            self._beginning.discard(source)

    async def _begin(
        self,
        source: str,
        settings: ApiSettings,
        since_ms: int | None,
        until_ms: int | None,
        *,
        dry_run: bool,
        events: Collection[str],
    ) -> RunRecord:
        if since_ms is None:
            since_ms = await self._outages.oldest_ms(source)
        now_ms, returned_ms = self._clock.now_ms(), await self._outages.returned_ms()
        until_ms = now_ms if until_ms is None else min(until_ms, now_ms)
        if until_ms <= since_ms:
            raise NotReconciled("the period ends before it begins")
        period = Period.of(
            since_ms=since_ms,
            until_ms=until_ms,
            now_ms=now_ms,
            returned_ms=returned_ms,
            give_up_ms=settings.give_up_after,
        )
        record = await self._store.reconstructions.begin(
            source,
            since_ms=since_ms,
            until_ms=period.horizon_ms,
            dry_run=dry_run,
            now_ms=now_ms,
        )
        self._jobs.append(_Job(record, settings, period, events))
        self._reporter.begun(record)
        self._wakeup.set()
        return record

    def cancel(self, number: int) -> bool:
        """End a run; what it has made stays made. False if it is not under way."""
        for job in self._jobs:
            if job.record.id == number:
                job.is_cancelled = True
                if job.task is not None:
                    job.task.cancel()
                self._wakeup.set()
                return True
        return False

    async def run(self) -> None:
        """Do the runs that were requested, and start those that are due; raises StoreBroken."""
        while True:
            self._wakeup.clear()
            try:
                await self._refresh()
                while self._jobs:
                    await self._work(self._jobs[0])
                    await self._refresh()
            except StoreUnavailable as error:
                self._reporter.unavailable(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wakeup.wait()

    async def _work(self, job: _Job) -> None:
        """Run a job to its end; raises StoreError."""
        try:
            if job.is_cancelled:
                await self._end(job, "cancelled", RunReport(), None)
                return
            # A task of its own, so that an operator can cancel it alone.
            async with asyncio.TaskGroup() as group:
                job.task = group.create_task(self._reconcile(job))
        except* StoreError as errors:
            raise _leaf(errors) from None
        finally:
            self._jobs.remove(job)

    async def _reconcile(self, job: _Job) -> None:
        # A relay without a sender's API does not need the client.
        from relay.reconciliation.run import reconcile  # noqa: PLC0415

        report, place = RunReport(), None
        state: RunState = "failed"

        def report_progress(doing: str, done: int, total: int) -> None:
            job.progress = Progress(doing, done, total)

        try:
            place = await reconcile(
                job.record,
                job.settings,
                job.period,
                events=job.events,
                store=self._store,
                clock=self._clock,
                report=report,
                verdicts=lambda event: match(event, self._routes),
                stored=self._stored,
                report_progress=report_progress,
            )
            state = "done"
        except asyncio.CancelledError:
            if not job.is_cancelled:
                raise
            state = "cancelled"
        except StoreBroken:
            raise
        except RelayError as error:
            report.failed = str(error)
        except Exception as error:  # noqa: BLE001  a bug here must not stop the relay
            report.failed = "a bug of the relay; its log has the traceback"
            self._reporter.bug(error)
        await self._end(job, state, report, place)

    async def _end(
        self, job: _Job, state: RunState, report: RunReport, place: ReadPosition | None
    ) -> None:
        await self._forget_erased(report)
        record = await self._store_end(job, state, report, place)
        # An erasure that was ordered meanwhile has not found the names.
        if await self._forget_erased(report):
            record = await self._store_end(job, state, report, place)
        self._outages.ended(job.record.source, state)
        self._reporter.ended(record, report)

    async def _store_end(
        self, job: _Job, state: RunState, report: RunReport, place: ReadPosition | None
    ) -> RunRecord:
        keeps_place = state == "done" and not job.record.dry_run
        return await self._store.reconstructions.end(
            job.record,
            state,
            report=report.values(),
            place=place if keeps_place else None,
            now_ms=self._clock.now_ms(),
        )

    async def _forget_erased(self, report: RunReport) -> bool:
        """Take people out of a report who were erased during the run; whether there were any."""
        people = {fact.person for fact in report.named if fact.person is not None}
        erased = await self._store.reconstructions.erased(people)
        report.forget(erased)
        return bool(erased)

    def _stored(
        self, event: Event, verdicts: Sequence[Verdict], outcome: ReconstructionOutcome
    ) -> None:
        if outcome == "accepted":
            self._reporter.reconstructed(event, verdicts)
            for verdict in verdicts:
                self._wake(verdict.sink)

    async def _refresh(self) -> None:
        await self._outages.refresh(self._sources)
        if not self._store.ownership.holds(MAINTENANCE):
            return
        for name, source in self.sources.items():
            api = source.api
            if api is not None and source.reconcile == "auto" and self.under_way(name) is None:
                since_ms = await self._outages.due_since_ms(name, give_up_ms=api.give_up_after)
                if since_ms is None:
                    continue
                # Another relay of the same store may have had the maintenance until now.
                with suppress(NotReconciled):
                    await self.begin(name, since_ms=since_ms, until_ms=None, dry_run=False)


def _leaf(errors: ExceptionGroup[StoreError]) -> StoreError:
    error: StoreError | ExceptionGroup[StoreError] = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
