"""Insertion of attempts and update of their deliveries, many in one statement."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from relay.core.delivery import MOVES, STATUS_AFTER, Settlement, Status
from relay.store.postgres.driver import Query, Steps
from relay.store.postgres.fences import GUARD, Fence
from relay.store.postgres.text import storable

_OUTCOMES = """
SELECT * FROM unnest(
    %(event)b::bigint[], %(sink)b::text[], %(attempts)b::int[], %(after)b::text[],
    %(due_at)b::bigint[], %(settled_at)b::bigint[], %(counts)b::int[], %(started_at)b::bigint[],
    %(duration_ms)b::bigint[], %(result)b::text[], %(code)b::int[], %(reason)b::text[],
    %(answer)b::text[], %(replay)b::bigint[], %(fence)b::bigint[]
) WITH ORDINALITY AS o (
    event, sink, attempts, after, due_at, settled_at, counts, started_at,
    duration_ms, result, code, reason, answer, replay, fence, n
)
"""
_NOTE = """
INSERT INTO relay.attempts
    (event, sink, started_at, duration_ms, result, status, reason, answer, replay)
"""
# Rows are found by their primary key, whatever the statistics say of the table, and written in that
# order, so that two transactions do not wait for each other. `is_found` is always 1, but taken to
# be so rarely, and the other conditions join nothing: both keep the update from a scan.
_SETTLE = f"""
WITH owned AS MATERIALIZED ({GUARD}),
outcomes AS MATERIALIZED (
    SELECT DISTINCT ON (o.event, o.sink COLLATE "C") o.* FROM ({_OUTCOMES}) AS o
    WHERE o.fence IS NULL OR (o.sink COLLATE "C", o.fence) IN (SELECT sink, fence FROM owned)
    ORDER BY o.event, o.sink COLLATE "C", o.n
),
found AS MATERIALIZED (
    SELECT o.*, x.place, 1 AS is_found FROM outcomes AS o, LATERAL (
        SELECT ctid AS place FROM relay.deliveries
        WHERE event = o.event AND sink = o.sink COLLATE "C" OFFSET 0
    ) AS x
),
moved AS (
    UPDATE relay.deliveries AS d
    SET status = o.after, due_at = o.due_at, settled_at = o.settled_at,
        tries = d.tries + 1, tried_at = o.started_at, reason = nullif(o.reason, ''),
        attempts = d.attempts + o.counts,
        first_attempt_at = coalesce(
            d.first_attempt_at, CASE WHEN o.counts > 0 THEN o.started_at END
        ),
        turn = CASE WHEN o.after = 'pending' THEN d.turn END, leased = false
    FROM found AS o
    WHERE d.ctid = o.place AND o.is_found = 1
        AND d.status = 'pending' AND d.attempts - o.attempts = 0
    RETURNING o.n
),
noted AS (
    {_NOTE}
    SELECT event, sink, started_at, duration_ms, result, code, reason, answer, replay
    FROM outcomes JOIN moved USING (n) ORDER BY n
)
SELECT NULL::bigint, sink, fence FROM owned UNION ALL SELECT n, NULL, NULL FROM moved
"""
# An answer may repeat the body, so it goes with it; a removed event gets no attempt.
# It may have been noted before, if the outcome of a commit was unknown.
_OVERTAKEN = f"""
{_NOTE}
SELECT
    d.event, d.sink, o.started_at, o.duration_ms, o.result, o.code, o.reason,
    CASE WHEN e.body IS NULL THEN '' ELSE o.answer END, o.replay
FROM ({_OUTCOMES}) AS o, LATERAL (
    SELECT event, sink FROM relay.deliveries
    WHERE event = o.event AND sink = o.sink COLLATE "C" OFFSET 0
) AS d, LATERAL (SELECT body FROM relay.events WHERE seq = o.event OFFSET 0) AS e
WHERE NOT EXISTS (
    SELECT 1 FROM relay.attempts AS a
    WHERE a.event = d.event AND a.sink = d.sink AND a.started_at = o.started_at
        AND a.duration_ms = o.duration_ms AND a.result = o.result
)
ORDER BY o.n
"""


Owned = Collection[tuple[str, int]]
"""Sinks, with the numbers of the fences under which they are still owned."""


class Outcome(NamedTuple):
    """A settlement, and the fence under which its delivery was leased."""

    settlement: Settlement
    fence: Fence | None

    @property
    def sink(self) -> str:
        return self.settlement.delivery.sink

    def is_of(self, owned: Owned) -> bool:
        """Whether this relay may write it."""
        return self.fence is None or (self.sink, self.fence.number) in owned


def settle(batches: Sequence[Sequence[Outcome]]) -> Steps[list[list[bool]]]:
    """Record attempts and update their deliveries; return whether each was written.

    False where another relay owns the sink: then nothing is. A delivery that has changed since its
    lease stays as it is: only the attempt is recorded.
    """
    outcomes = [outcome for batch in batches for outcome in batch]
    owned, left = yield from _settle(outcomes)
    if left:
        # Another transaction may have changed the row at the same time.
        _, left = yield from _settle(left)
    if left:
        yield Query(_OVERTAKEN, _values(left))
    return [[outcome.is_of(owned) for outcome in batch] for batch in batches]


def _settle(outcomes: Sequence[Outcome]) -> Steps[tuple[Owned, list[Outcome]]]:
    """Return the fences that hold, and the outcomes under them that changed nothing."""
    guarded = {(each.sink, each.fence) for each in outcomes if each.fence is not None}
    guard = {
        "guarded": [sink for sink, _ in guarded],
        "holders": [fence.holder for _, fence in guarded],
        "histories": [fence.history for _, fence in guarded],
        "fences": [fence.number for _, fence in guarded],
    }
    rows = yield Query(_SETTLE, _values(outcomes) | guard)
    owned = {(sink, fence) for n, sink, fence in rows if n is None}
    moved = {n for n, _, _ in rows if n is not None}
    left = [
        outcome for n, outcome in enumerate(outcomes, 1) if n not in moved and outcome.is_of(owned)
    ]
    return owned, left


def _values(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    settlements = [outcome.settlement for outcome in outcomes]
    deliveries = [each.delivery for each in settlements]
    attempts = [each.attempt for each in settlements]
    return {
        "event": [each.seq for each in deliveries],
        "sink": [each.sink for each in deliveries],
        "attempts": [each.attempts for each in deliveries],
        "after": [_after(each).value for each in settlements],
        "due_at": [each.due_ms for each in settlements],
        "settled_at": [_settled_ms(each) for each in settlements],
        "counts": [int(each.counts) for each in settlements],
        "started_at": [each.started_ms for each in attempts],
        "duration_ms": [each.duration_ms for each in attempts],
        "result": [each.result for each in attempts],
        "code": [each.status for each in attempts],
        "reason": [storable(each.reason) for each in attempts],
        "answer": [storable(each.answer) for each in attempts],
        "replay": [each.replay for each in deliveries],
        "fence": [None if each.fence is None else each.fence.number for each in outcomes],
    }


def _after(settlement: Settlement) -> Status:
    status = STATUS_AFTER[settlement.attempt.result]
    if status not in MOVES[Status.PENDING]:
        raise ValueError(f"no delivery moves from pending to {status}")
    return status


def _settled_ms(settlement: Settlement) -> int | None:
    if _after(settlement) is Status.PENDING:
        return None
    return settlement.attempt.started_ms + settlement.attempt.duration_ms
