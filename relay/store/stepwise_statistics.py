"""Figures counted from the ends of the tables, where the newest rows are.

Rows are read in steps, because a reader that works long keeps other queries waiting. A clock that
was set back for a while leaves old times among newer ones, so reading ends only after a whole step
without a row of the requested time.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from relay.core.clock import Clock
from relay.core.minutes import MINUTE_MS, Minute, minute_of, starts
from relay.store.statistics import (
    DURATIONS_MS,
    FAILURES_MAX,
    AttemptSummary,
    FailureCount,
    ResultCount,
)

STEP_ROWS = 1000
BUDGET_S = 0.25
"""Time after which no further step begins."""

_BOUNDS = " ".join(f"WHEN duration_ms < {ms} THEN {place}" for place, ms in enumerate(DURATIONS_MS))
DURATION = f"CASE {_BOUNDS} ELSE {len(DURATIONS_MS)} END"
"""SQL for the place of an attempt's duration in `ResultCount.durations`."""

_END = (1 << 63) - 1

Row = Sequence[Any]


class Steps(Protocol):
    """An engine's queries; each counts the newest `limit` rows before a number."""

    async def accepted(self, before: int, limit: int) -> Sequence[Row]:
        """Count events: the least number, the minute, `accepted` and the count of each group."""
        ...

    async def attempted(self, before: int, limit: int) -> Sequence[Row]:
        """Count attempts likewise, as `delivered` and `failed`."""
        ...

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> Sequence[Row]:
        """Count attempts by result, status, reason and place of the duration.

        A row has the least number, these four, the count, and the first and the last end. Other
        attempts are one group with None instead of these four: its times say where to end.
        """
        ...


class StepwiseStatistics:
    """Fulfils `relay.store.statistics.Statistics`."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        self._steps = steps
        self._clock = clock

    async def minutes(self, since_ms: int, until_ms: int) -> Sequence[Minute]:
        ends_s = self._clock.monotonic() + BUDGET_S
        events, events_from_ms = await self._by_minute(self._steps.accepted, since_ms, ends_s)
        attempts, attempts_from_ms = await self._by_minute(
            self._steps.attempted, since_ms, ends_s + BUDGET_S
        )
        return [
            Minute(
                at_ms,
                events[at_ms, "accepted"] if at_ms >= events_from_ms else None,
                attempts[at_ms, "delivered"] if at_ms >= attempts_from_ms else None,
                attempts[at_ms, "failed"] if at_ms >= attempts_from_ms else None,
            )
            for at_ms in starts(since_ms, until_ms)
        ]

    async def _by_minute(
        self,
        count: Callable[[int, int], Awaitable[Sequence[Row]]],
        since_ms: int,
        ends_s: float,
    ) -> tuple[Counter[tuple[int, str]], int]:
        """Return counts by minute and kind, and the first minute that is counted in full."""
        counts: Counter[tuple[int, str]] = Counter()
        before, from_ms = _END, minute_of(since_ms)
        while rows := await count(before, STEP_ROWS):
            for _, at_ms, kind, number in rows:
                counts[at_ms, kind] += number
            if max(at_ms for _, at_ms, _, _ in rows) < from_ms:
                break
            before = min(row[0] for row in rows)
            if self._clock.monotonic() > ends_s:
                return counts, min(at_ms for _, at_ms, _, _ in rows) + MINUTE_MS
        return counts, from_ms

    async def attempts(self, sink: str, since_ms: int) -> AttemptSummary:
        ends_s = self._clock.monotonic() + BUDGET_S
        attempts = _Attempts()
        before, complete, looked_to_ms = _END, True, since_ms
        while rows := await self._steps.of_sink(before, STEP_ROWS, sink, since_ms):
            attempts.add(row for row in rows if row[1] is not None)
            if max(row[-1] for row in rows) < since_ms:
                break
            before = min(row[0] for row in rows)
            if self._clock.monotonic() > ends_s:
                complete = False
                looked_to_ms = max(since_ms, min(row[-2] for row in rows))
                break
        return attempts.summary(complete=complete, looked_to_ms=looked_to_ms)


class _Attempts:
    """Sums of the steps."""

    def __init__(self) -> None:
        self._durations: dict[str, list[int]] = {}
        self._failures: dict[tuple[int | None, str], tuple[int, int, int]] = {}

    def add(self, rows: Iterator[Row]) -> None:
        for _, result, status, reason, duration, count, first_ms, last_ms in rows:
            durations = self._durations.setdefault(result, [0] * (len(DURATIONS_MS) + 1))
            durations[duration] += count
            if result != "delivered":
                known = self._failures.get((status, reason), (0, first_ms, last_ms))
                self._failures[status, reason] = (
                    known[0] + count,
                    min(known[1], first_ms),
                    max(known[2], last_ms),
                )

    def summary(self, *, complete: bool, looked_to_ms: int) -> AttemptSummary:
        results = [
            ResultCount(result, sum(durations), durations)  # type: ignore[arg-type]
            for result, durations in self._durations.items()
        ]
        failures = [FailureCount(*key, *known) for key, known in self._failures.items()]
        failures.sort(key=lambda each: (-each.count, -each.last_ms))
        return AttemptSummary(
            results=sorted(results, key=lambda each: -each.count),
            failures=failures[:FAILURES_MAX],
            other_failures=sum(each.count for each in failures[FAILURES_MAX:]),
            complete=complete,
            looked_to_ms=looked_to_ms,
        )
