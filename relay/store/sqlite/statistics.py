"""Figures counted from the ends of the tables, where the newest rows are.

Rows are read in steps, because a reader that works long keeps other queries waiting. A clock that
was set back for a while leaves old times among newer ones, so reading ends only after a whole step
without a row of the requested time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from relay.core.clock import Clock
from relay.core.minutes import MINUTE_MS, Minute, minute_of, starts
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.shared import Part, Shared
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

_ACCEPTED = f"""
SELECT min(seq), received_at - received_at % {MINUTE_MS}, 'accepted', count(*)
FROM (SELECT seq, received_at FROM events WHERE seq < ? ORDER BY seq DESC LIMIT {STEP_ROWS})
GROUP BY 2
"""
_ATTEMPTED = f"""
SELECT min(number), ended - ended % {MINUTE_MS},
    iif(result = 'delivered', 'delivered', 'failed') AS kind, count(*)
FROM (
    SELECT rowid AS number, started_at + duration_ms AS ended, result
    FROM attempts WHERE rowid < ? ORDER BY rowid DESC LIMIT {STEP_ROWS}
)
GROUP BY 2, 3
"""
_BOUNDS = " ".join(f"WHEN duration_ms < {ms} THEN {place}" for place, ms in enumerate(DURATIONS_MS))
_DURATION = f"CASE {_BOUNDS} ELSE {len(DURATIONS_MS)} END"
# What does not fit is a group too, because its times say where to end.
_OF_SINK = f"""
SELECT min(number), iif(fits, result, NULL), iif(fits, status, NULL), iif(fits, reason, NULL),
    iif(fits, {_DURATION}, NULL), count(*), min(ended), max(ended)
FROM (
    SELECT rowid AS number, started_at + duration_ms AS ended, duration_ms, result, status,
        reason, sink = ?2 AND started_at + duration_ms >= ?3 AS fits
    FROM attempts WHERE rowid < ?1 ORDER BY rowid DESC LIMIT {STEP_ROWS}
)
GROUP BY 2, 3, 4, 5
"""
_END = (1 << 63) - 1


class SqliteStatistics(Part):
    """Fulfils `relay.store.statistics.Statistics`."""

    def __init__(self, shared: Shared, clock: Clock) -> None:
        super().__init__(shared)
        self._clock = clock

    async def minutes(self, since_ms: int, until_ms: int) -> Sequence[Minute]:
        ends_s = self._clock.monotonic() + BUDGET_S
        events, events_from_ms = await self._by_minute(_ACCEPTED, since_ms, ends_s)
        attempts, attempts_from_ms = await self._by_minute(_ATTEMPTED, since_ms, ends_s + BUDGET_S)
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
        self, sql: str, since_ms: int, ends_s: float
    ) -> tuple[Counter[tuple[int, str]], int]:
        """Return counts by minute and kind, and the first minute that is counted in full."""
        counts: Counter[tuple[int, str]] = Counter()
        before, from_ms = _END, minute_of(since_ms)
        while rows := await self._step(sql, before):
            for _, at_ms, kind, count in rows:
                counts[at_ms, kind] += count
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
        while rows := await self._step(_OF_SINK, before, sink, since_ms):
            attempts.add(row for row in rows if row[1] is not None)
            if max(row[-1] for row in rows) < since_ms:
                break
            before = min(row[0] for row in rows)
            if self._clock.monotonic() > ends_s:
                complete = False
                looked_to_ms = max(since_ms, min(row[-2] for row in rows))
                break
        return attempts.summary(complete=complete, looked_to_ms=looked_to_ms)

    async def _step(self, sql: str, *values: object) -> list[Row]:
        def read(db: sqlite3.Connection) -> list[Row]:
            return db.execute(sql, values).fetchall()

        return await self._reader.read(read)


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
