"""Figures counted from the ends of the tables, where the newest rows are.

Rows are read in steps, because a reader that works long keeps other queries waiting. A clock that
was set back for a while leaves old times among newer ones, so reading ends only after a whole step
without a row of the requested time.

The counts of the last hour are kept, and read on from the last row that they have: a store reads
some 700,000 rows a second, and an hour at 5,000 events a second has 18 million. The rows are what
all relays of a store share, and what a restart does not change.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from relay.core.clock import Clock
from relay.core.minutes import HOUR_MS, MINUTE_MS, Minute, minute_of, starts
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

SECOND_MS = 1000
KEPT_MS = HOUR_MS + MINUTE_MS
"""The last hour, from the beginning of its first minute on."""

_BOUNDS = " ".join(f"WHEN duration_ms < {ms} THEN {place}" for place, ms in enumerate(DURATIONS_MS))
DURATION = f"CASE {_BOUNDS} ELSE {len(DURATIONS_MS)} END"
"""SQL for the place of an attempt's duration in `ResultCount.durations`."""

_END = (1 << 63) - 1

Row = Sequence[Any]


class Numbers(NamedTuple):
    """Numbers of an event and of an attempt."""

    event: int
    attempt: int


class Steps(Protocol):
    """An engine's queries; each counts the newest `limit` rows before a number."""

    async def last(self) -> Numbers:
        """Return the last numbers: every row up to them can be seen."""
        ...

    async def accepted(self, after: int, before: int, limit: int) -> Sequence[Row]:
        """Count events after a number: the least number, the second, `accepted` and the count.

        Reconstructed ones do not count; a second that has no other counts 0.
        """
        ...

    async def attempted(self, after: int, before: int, limit: int) -> Sequence[Row]:
        """Count attempts likewise, as `delivered` and `failed`."""
        ...

    async def of_sink(self, before: int, limit: int, sink: str, since_ms: int) -> Sequence[Row]:
        """Count attempts by result, status, reason and place of the duration.

        A row has the least number, these four, the count, and the first and the last end. Other
        attempts are one group with None instead of these four: its times say where to end.
        """
        ...


_Read = Callable[[int, int, int], Awaitable[Sequence[Row]]]
_IsOver = Callable[[], bool]


class _Counts:
    """Counts of one table's rows by second and kind, as far as they were read."""

    def __init__(self, read: _Read, since_ms: int) -> None:
        self._read = read
        self._last = 0
        self._by_second: Counter[tuple[int, str]] = Counter()
        self.from_ms = minute_of(since_ms)
        """The first minute that is counted in full."""

    async def read_on(self, last: int, is_over: _IsOver) -> None:
        """Count the rows up to a number that were not counted yet, the newest first."""
        added: Counter[tuple[int, str]] = Counter()
        before, from_ms = last + 1, self.from_ms
        while rows := await self._read(self._last, before, STEP_ROWS):
            for _, at_ms, kind, number in rows:
                added[at_ms, kind] += number
            if max(at_ms for _, at_ms, _, _ in rows) < from_ms:
                break
            before = min(row[0] for row in rows)
            # Only at first: rows left out later would be missing for an hour.
            if not self._last and is_over():
                from_ms = minute_of(min(at_ms for _, at_ms, _, _ in rows)) + MINUTE_MS
                break
        self._by_second += added
        self._last, self.from_ms = last, from_ms

    def forget(self, until_ms: int) -> None:
        """Drop the counts before a time."""
        for key in [key for key in self._by_second if key[0] < until_ms]:
            del self._by_second[key]

    def since(self, since_ms: int) -> int:
        return sum(count for (at_ms, _), count in self._by_second.items() if at_ms >= since_ms)

    def of_minutes(self, kind: str, minutes: range) -> Iterator[int | None]:
        """Yield the counts of a kind; None for a minute that is not known."""
        counts: Counter[int] = Counter()
        for (at_ms, name), count in self._by_second.items():
            if name == kind:
                counts[minute_of(at_ms)] += count
        return (counts[at_ms] if at_ms >= self.from_ms else None for at_ms in minutes)


class StepwiseStatistics:
    """Fulfils `relay.store.statistics.Statistics`."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        self._steps = steps
        self._clock = clock
        self._kept: tuple[_Counts, _Counts] | None = None
        self._turn = asyncio.Lock()
        """Held while the kept counts are read on, so that no row counts twice."""

    async def keep_up(self) -> None:
        await self._last_hour()

    async def last_minute(self) -> int:
        events, _ = await self._last_hour()
        now_ms = self._clock.now_ms()
        return events.since(now_ms - now_ms % SECOND_MS - MINUTE_MS + SECOND_MS)

    async def minutes(self, since_ms: int, until_ms: int) -> Sequence[Minute]:
        if since_ms < self._clock.now_ms() - HOUR_MS:
            events, attempts = await self._read_on(self._counts_since(since_ms))
        else:
            events, attempts = await self._last_hour()
        minutes = starts(since_ms, until_ms)
        columns = (
            events.of_minutes("accepted", minutes),
            attempts.of_minutes("delivered", minutes),
            attempts.of_minutes("failed", minutes),
        )
        return [Minute(*counts) for counts in zip(minutes, *columns, strict=True)]

    async def _last_hour(self) -> tuple[_Counts, _Counts]:
        async with self._turn:
            since_ms = self._clock.now_ms() - KEPT_MS
            self._kept = await self._read_on(self._kept or self._counts_since(since_ms))
            for each in self._kept:
                each.forget(minute_of(since_ms))
            return self._kept

    def _counts_since(self, since_ms: int) -> tuple[_Counts, _Counts]:
        return _Counts(self._steps.accepted, since_ms), _Counts(self._steps.attempted, since_ms)

    async def _read_on(self, counts: tuple[_Counts, _Counts]) -> tuple[_Counts, _Counts]:
        for each, last in zip(counts, await self._steps.last(), strict=True):
            await each.read_on(last, partial(self._is_over, self._clock.monotonic() + BUDGET_S))
        return counts

    def _is_over(self, ends_s: float) -> bool:
        return self._clock.monotonic() > ends_s

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
