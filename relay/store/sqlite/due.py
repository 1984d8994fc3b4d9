"""Changes of due times, and discards of pending deliveries.

A delivery that waits for another of its turn stays held, whatever its due time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from relay.core.delivery import Status
from relay.store import Tier
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import Moved
from relay.store.sqlite.ordering import HELD_MS
from relay.store.sqlite.queries import OF_TIER

STEP_ROWS = 1000
"""Deliveries brought forward per transaction, so that others can run in between."""

_LATER = {
    tier: f"""
SELECT json_group_array(event) FROM (
    SELECT event FROM deliveries
    WHERE sink = ? AND status = 'pending' AND {belongs} AND due_at > ? AND due_at < ?
    LIMIT {STEP_ROWS}
)
"""
    for tier, belongs in OF_TIER.items()
}
# A clock that was ahead has distorted these times too.
_BRING_FORWARD = """
UPDATE deliveries
SET due_at = ?, first_attempt_at = min(first_attempt_at, ?), tried_at = min(tried_at, ?)
WHERE sink = ? AND status = 'pending' AND due_at > ? AND due_at < ?
    AND event IN (SELECT value FROM json_each(?))
"""
_GIVE_UP = """
UPDATE deliveries SET status = 'discarded', settled_at = ?,
    reason = 'discarded by an operator' || iif(reason IS NULL, '', ' after: ' || reason)
WHERE event = ? AND sink = ? AND status = 'pending'
"""


class Span(NamedTuple):
    """Deliveries of a tier that are due between two times, with their new due time."""

    tier: Tier
    after: int
    before: int
    due: int


class Forward(NamedTuple):
    """Deliveries of a span, as a JSON array of their events."""

    sink: str
    span: Span
    events: str
    now_ms: int


def spans(*, beyond_ms: int, to_ms: int, now_ms: int) -> tuple[Span, ...]:
    """Return the spans of late deliveries: tried ones after `beyond_ms`, others after now."""
    limits: dict[Tier, tuple[int, int]] = {
        "tried": (beyond_ms, to_ms),
        "live": (now_ms, now_ms),
        "replay": (now_ms, now_ms),
    }
    return tuple(
        Span(tier, held + after, held + HELD_MS, held + to)
        for tier, (after, to) in limits.items()
        for held in (0, HELD_MS)
    )


def later(db: sqlite3.Connection, sink: str, span: Span) -> str:
    """Return some deliveries of a span, `[]` for none."""
    row = db.execute(_LATER[span.tier], (sink, span.after, span.before)).fetchone()
    return str(row[0])


def bring_forward(db: sqlite3.Connection, steps: Sequence[Forward]) -> list[int]:
    """Set new due times; return for each step how many deliveries were due later."""
    return [
        db.execute(
            _BRING_FORWARD,
            (
                step.span.due,
                step.now_ms,
                step.now_ms,
                step.sink,
                step.span.after,
                step.span.before,
                step.events,
            ),
        ).rowcount
        for step in steps
    ]


def only(event: int) -> str:
    """Return one event in the form of `Forward.events`."""
    return orjson.dumps([event]).decode()


def give_up(db: sqlite3.Connection, requests: Sequence[tuple[int, str, int]]) -> list[Moved]:
    """Discard pending deliveries, by event, sink and time."""
    moves: list[Moved] = []
    for event, sink, now_ms in requests:
        count = db.execute(_GIVE_UP, (now_ms, event, sink)).rowcount
        moved = Moved({(sink, Status.PENDING): -count, (sink, Status.DISCARDED): count})
        moves.append(moved)
    return moves
