"""Insertion of attempts and update of their deliveries, many in one statement."""

from collections.abc import Sequence

from relay.core import foreign_json
from relay.core.delivery import MOVES, STATUS_AFTER, Settlement, Status
from relay.store.sqlite import bulk, operator_writes
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.group_commit import transaction

TRIGGER = """
CREATE TEMP VIEW outcomes AS
SELECT
    d.event, d.sink, d.attempts, d.status, d.due_at, d.settled_at, 0 AS counts,
    a.started_at, a.duration_ms, a.result, a.status AS code, a.reason, a.answer, a.replay
FROM main.deliveries AS d JOIN main.attempts AS a USING (event, sink);

CREATE TEMP TRIGGER settle INSTEAD OF INSERT ON outcomes BEGIN
    UPDATE deliveries
    SET status = NEW.status, due_at = NEW.due_at, settled_at = NEW.settled_at,
        tries = tries + 1, tried_at = NEW.started_at,
        reason = nullif(NEW.reason, ''), attempts = attempts + NEW.counts,
        first_attempt_at = coalesce(first_attempt_at, iif(NEW.counts, NEW.started_at, NULL))
    WHERE event = NEW.event AND sink = NEW.sink AND status = 'pending'
        AND attempts = NEW.attempts;
    SELECT raise(ABORT, 'overtaken') WHERE changes() = 0;
    INSERT INTO attempts
        (event, sink, started_at, duration_ms, result, status, reason, answer, replay)
    VALUES (
        NEW.event, NEW.sink, NEW.started_at, NEW.duration_ms, NEW.result, NEW.code, NEW.reason,
        NEW.answer, NEW.replay
    );
END;
"""
"""`attempts` is the number before the attempt; `counts` is added to it."""

_SETTLE = "INSERT INTO outcomes VALUES {rows}"
# An answer may repeat the body, so it goes with it; a removed event gets no attempt.
_OVERTAKEN = """
INSERT INTO attempts (event, sink, started_at, duration_ms, result, status, reason, answer, replay)
SELECT d.event, d.sink, ?3, ?4, ?5, ?6, ?7, iif(e.body IS NULL, '', ?8), ?9
FROM deliveries AS d JOIN events AS e ON e.seq = d.event
WHERE d.event = ?1 AND d.sink = ?2
"""


def settle(
    db: sqlite3.Connection, batches: Sequence[Sequence[Settlement]]
) -> list[list[Status | None]]:
    """Record attempts and update their deliveries; return the new statuses.

    None for a delivery that has changed since its lease: only the attempt is recorded.
    A failed delivery of a cancelled replay is not tried again.
    """
    settlements = [settlement for batch in batches for settlement in batch]
    if any(map(_may_be_withdrawn, settlements)):
        with transaction(db):
            statuses = _settle_all(db, settlements)
            for place, (settlement, status) in enumerate(zip(settlements, statuses, strict=True)):
                if status is not None and _may_be_withdrawn(settlement):
                    statuses[place] = operator_writes.withdraw_one(db, settlement.delivery)
    else:
        statuses = _settle_all(db, settlements)
    remaining = iter(statuses)
    return [[next(remaining) for _ in batch] for batch in batches]


def rows_of(batches: Sequence[Sequence[Settlement]]) -> int:
    """Return the number of rows that `settle` inserts."""
    return sum(map(len, batches))


def _may_be_withdrawn(settlement: Settlement) -> bool:
    """Whether it is a failed attempt of a replay, which may have been cancelled."""
    is_pending = STATUS_AFTER[settlement.attempt.result] is Status.PENDING
    return is_pending and settlement.delivery.replay is not None


def _settle_all(db: sqlite3.Connection, settlements: Sequence[Settlement]) -> list[Status | None]:
    statuses: list[Status | None] = []
    for start in range(0, len(settlements), bulk.ROWS_MAX):
        statuses += _settle(db, settlements[start : start + bulk.ROWS_MAX])
    return statuses


def _settle(db: sqlite3.Connection, settlements: Sequence[Settlement]) -> list[Status | None]:
    try:
        bulk.write(db, _SETTLE, [_row(settlement) for settlement in settlements])
    except sqlite3.IntegrityError:
        if len(settlements) > 1:
            # One has changed, and nothing was written: written alone, each shows whether it did.
            with transaction(db):
                return [status for each in settlements for status in _settle(db, [each])]
        db.execute(_OVERTAKEN, _attempt(settlements[0]))
        return [None]
    return [STATUS_AFTER[settlement.attempt.result] for settlement in settlements]


def _row(settlement: Settlement) -> Row:
    delivery, attempt = settlement.delivery, settlement.attempt
    status = STATUS_AFTER[attempt.result]
    if status not in MOVES[Status.PENDING]:
        raise ValueError(f"no delivery moves from pending to {status}")
    event, sink, *tried = _attempt(settlement)
    return (
        event,
        sink,
        delivery.attempts,
        status.value,
        settlement.due_ms,
        None if status is Status.PENDING else attempt.started_ms + attempt.duration_ms,
        int(settlement.counts),
        *tried,
    )


def _attempt(settlement: Settlement) -> Row:
    delivery, attempt = settlement.delivery, settlement.attempt
    return (
        delivery.seq,
        delivery.sink,
        attempt.started_ms,
        attempt.duration_ms,
        attempt.result,
        attempt.status,
        foreign_json.whole(attempt.reason),
        foreign_json.whole(attempt.answer),
        delivery.replay,
    )
