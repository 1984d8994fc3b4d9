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

import msgspec

from relay.core.clock import Clock
from relay.core.delivery import Result
from relay.core.minutes import HOUR_MS, MINUTE_MS, Minute, minute_of, starts
from relay.store.replays import Mark
from relay.store.repository import Connections, Repository, rows
from relay.store.rows import ORIGINAL, Row
from relay.store.sql import Sql

STEP_ROWS = 1000
BUDGET_S = 0.25
"""Time after which no further step begins."""

SECOND_MS = 1000
KEPT_MS = HOUR_MS + MINUTE_MS
"""The last hour, from the beginning of its first minute on."""

DURATIONS_MS = (10, 100, 1000, 10_000)
"""Exclusive upper bounds of the durations that are counted apart; longer ones are the rest."""

FAILURES_MAX = 10


class ResultCount(msgspec.Struct, frozen=True):
    """Attempts with one result."""

    result: Result
    count: int
    durations: Sequence[int]
    """Counts by duration: one for each of `DURATIONS_MS`, then of the longer ones."""


class FailureCount(msgspec.Struct, frozen=True):
    """Attempts that failed for one reason; times are their ends."""

    status: int | None
    reason: str
    count: int
    first_ms: int
    last_ms: int


class AttemptSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one sink that ended since a time, as far as they were read."""

    results: Sequence[ResultCount]
    """Results that occurred, the most frequent first."""
    failures: Sequence[FailureCount]
    """The most frequent reasons of attempts that did not deliver, at most `FAILURES_MAX`."""
    other_failures: int
    """Attempts that failed for further reasons."""
    complete: bool
    """False if reading took too long; the newest attempts are read first."""
    looked_to_ms: int
    """Earlier attempts are not counted."""


_BOUNDS = " ".join(f"WHEN duration_ms < {ms} THEN {place}" for place, ms in enumerate(DURATIONS_MS))
_DURATION = f"CASE {_BOUNDS} ELSE {len(DURATIONS_MS)} END"
"""Place of an attempt's duration in `ResultCount.durations`."""
_END = (1 << 63) - 1

# Each counts the newest rows before a number. Reconstructed events do not count; a second that has
# no others counts 0.
_ACCEPTED = Sql(f"""
SELECT min(seq), received_at - received_at % {SECOND_MS}, 'accepted',
    count(*) FILTER (WHERE reconstructed = {ORIGINAL})
FROM (
    SELECT seq, received_at, reconstructed FROM main.events
    WHERE seq > :after AND seq < :before ORDER BY seq DESC LIMIT :limit
) AS newest
GROUP BY 2
""")
_ATTEMPTED = Sql(f"""
SELECT min(attempt), ended - ended % {SECOND_MS},
    CASE WHEN result = 'delivered' THEN 'delivered' ELSE 'failed' END, count(*)
FROM (
    SELECT rowid AS attempt, started_at + duration_ms AS ended, result
    FROM main.attempts WHERE rowid > :after AND rowid < :before ORDER BY rowid DESC LIMIT :limit
) AS newest
GROUP BY 2, 3
""")
# By result, status, reason and place of the duration. Attempts that do not fit are one group with
# NULL instead of these: its times say where to end.
_OF_SINK = Sql(f"""
SELECT min(attempt), CASE WHEN fits THEN result END, CASE WHEN fits THEN status END,
    CASE WHEN fits THEN reason END, CASE WHEN fits THEN {_DURATION} END, count(*),
    min(ended), max(ended)
FROM (
    SELECT rowid AS attempt, started_at + duration_ms AS ended, duration_ms, result, status, reason,
        sink = :sink AND started_at + duration_ms >= :since AS fits
    FROM main.attempts WHERE rowid < :before ORDER BY rowid DESC LIMIT :limit
) AS newest
GROUP BY 2, 3, 4, 5
""")

_Read = Callable[[int, int], Awaitable[Sequence[Row]]]
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
        while step := await self._read(self._last, before):
            for _, at_ms, kind, number in step:
                added[at_ms, kind] += number
            if max(at_ms for _, at_ms, _, _ in step) < from_ms:
                break
            before = min(row[0] for row in step)
            # Only at first: rows left out later would be missing for an hour.
            if not self._last and is_over():
                from_ms = minute_of(min(at_ms for _, at_ms, _, _ in step)) + MINUTE_MS
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


class Statistics(Repository):
    """Counts of bounded cost; all methods may raise StoreError."""

    def __init__(
        self, connections: Connections, clock: Clock, *, last: Callable[[], Awaitable[Mark]]
    ) -> None:
        """`last` returns the last numbers: every row up to them can be seen."""
        super().__init__(connections)
        self._clock = clock
        self._last_numbers = last
        self._kept: tuple[_Counts, _Counts] | None = None
        self._turn = asyncio.Lock()
        """Held while the kept counts are read on, so that no row counts twice."""

    async def keep_up(self) -> None:
        """Count what has come since the last look, so that the next one is quick."""
        await self._last_hour()

    async def last_minute(self) -> int:
        """Count the new events of the last minute."""
        events, _ = await self._last_hour()
        now_ms = self._clock.now_ms()
        return events.since(now_ms - now_ms % SECOND_MS - MINUTE_MS + SECOND_MS)

    async def minutes(self, since_ms: int, until_ms: int) -> Sequence[Minute]:
        """Count by minute, from the minute of `since_ms` on; `until_ms` is exclusive.

        Minutes that could not be counted in time have None.
        """
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
        accepted, attempted = (partial(self._step, text) for text in (_ACCEPTED, _ATTEMPTED))
        return _Counts(accepted, since_ms), _Counts(attempted, since_ms)

    async def _step(self, text: Sql, after: int, before: int) -> Sequence[Row]:
        values = {"after": after, "before": before, "limit": STEP_ROWS}
        return await rows(self._reader, text, values)

    async def _read_on(self, counts: tuple[_Counts, _Counts]) -> tuple[_Counts, _Counts]:
        for each, last in zip(counts, await self._last_numbers(), strict=True):
            await each.read_on(last, partial(self._is_over, self._clock.monotonic() + BUDGET_S))
        return counts

    def _is_over(self, ends_s: float) -> bool:
        return self._clock.monotonic() > ends_s

    async def attempts(self, sink: str, since_ms: int) -> AttemptSummary:
        """Summarize the attempts of a sink."""
        ends_s = self._clock.monotonic() + BUDGET_S
        attempts = _Attempts()
        before, complete, looked_to_ms = _END, True, since_ms
        values = {"sink": sink, "since": since_ms, "limit": STEP_ROWS}
        while step := await rows(self._reader, _OF_SINK, {**values, "before": before}):
            attempts.add(row for row in step if row[1] is not None)
            if max(row[-1] for row in step) < since_ms:
                break
            before = min(row[0] for row in step)
            if self._clock.monotonic() > ends_s:
                complete = False
                looked_to_ms = max(since_ms, min(row[-2] for row in step))
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
