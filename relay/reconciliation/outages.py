"""Absences that lost events: which ones no run has covered, and when a run starts automatically."""

from collections.abc import Mapping, Sequence

from relay.core.authentication import SourceSettings
from relay.core.clock import Clock
from relay.core.errors import NotReconciled
from relay.reconciliation.reporter import ReconciliationReporter
from relay.store import Store
from relay.store.absences import Absence
from relay.store.reconstructions import RunState

FOLLOW_UP_MS = 24 * 3_600_000
"""Time after an absence in which a run that left something is followed by another one."""

PAUSES_MS: Mapping[RunState, int] = {"failed": 300_000, "cancelled": FOLLOW_UP_MS}
"""Wait before the next automatic run for a source, by how the last one ended."""

_RUNS_READ = 20


class Outages:
    """Knows the open absences of each source, as of the last `refresh`."""

    def __init__(self, store: Store, *, reporter: ReconciliationReporter, clock: Clock) -> None:
        self._store = store
        self._reporter = reporter
        self._clock = clock
        self._not_before_ms: dict[str, int] = {}
        self._unreconciled: Mapping[str, Sequence[Absence]] = {}

    @property
    def unreconciled(self) -> Mapping[str, Sequence[Absence]]:
        """By source; without those that an operator has acknowledged."""
        return self._unreconciled

    async def refresh(self, sources: Mapping[str, SourceSettings]) -> None:
        """Find the absences that no run has covered, and report them; raises StoreError."""
        unreconciled: dict[str, Sequence[Absence]] = {}
        for name, source in sources.items():
            if source.api is not None and source.reconcile != "off":
                absences = await self._store.absences.unreconciled(name)
                unreconciled[name] = [each for each in absences if each.acknowledged_ms is None]
        for name, source in sources.items():
            absences = unreconciled.get(name, ())
            known = {absence.id for absence in self.unreconciled.get(name, ())}
            new = [absence for absence in absences if absence.id not in known]
            if new:
                self._not_before_ms.pop(name, None)
            if new and source.reconcile == "ask":
                self._reporter.lost(name, new)
            self._reporter.unreconciled(name, absences)
        self._unreconciled = unreconciled

    async def due_since_ms(self, source: str, *, give_up_ms: int) -> int | None:
        """Return the start of the period that is due for an automatic run, if any.

        Until `give_up_ms` after an absence, the sender may still deliver the events that it first
        tried then. Raises StoreError.
        """
        now_ms = self._clock.now_ms()
        if now_ms < self._not_before_ms.get(source, 0):
            return None
        over = [
            each for each in self.unreconciled.get(source, ()) if each.to_ms + give_up_ms <= now_ms
        ]
        return over[0].from_ms if over else await self._unfinished_ms(source, now_ms - give_up_ms)

    async def _unfinished_ms(self, source: str, before_ms: int) -> int | None:
        """Return the start of the last run's period if it left something before this time.

        None if the last absence was long ago.
        """
        for run in await self._store.reconstructions.runs(before=None, limit=_RUNS_READ):
            if run.source == source and run.is_whole and run.state == "done":
                is_due = before_ms >= (run.ended_ms or 0)
                is_recent = before_ms < await self.returned_ms() + FOLLOW_UP_MS
                has_left = bool((run.report or {}).get("left"))
                return run.since_ms if has_left and is_due and is_recent else None
        return None

    def ended(self, source: str, state: RunState) -> None:
        """Postpone the next automatic run for a source, unless there is a new absence."""
        if state in PAUSES_MS:
            self._not_before_ms[source] = self._clock.now_ms() + PAUSES_MS[state]

    async def oldest_ms(self, source: str) -> int:
        """Return the start of the oldest absence that no run has covered.

        Raises NotReconciled if there is none, and StoreError.
        """
        absences = await self._store.absences.unreconciled(source)
        if not absences:
            raise NotReconciled(
                "no absence beyond the sender's retries is unreconciled; give --since for another "
                "period"
            )
        return absences[0].from_ms

    async def returned_ms(self) -> int:
        """Return the end of the last absence; 0 if there was none. Raises StoreError."""
        newest = await self._store.absences.newest(before=None, limit=1)
        return newest[0].to_ms if newest else 0
