"""Insertion of reconstructed events, and of the originals that supersede them."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from relay.core.delivery import Status
from relay.core.event import Event, Outcome
from relay.core.routing import Verdict
from relay.store.erasures import is_erased
from relay.store.reconstructions import SENT_RECONSTRUCTED, ReconstructionOutcome
from relay.store.rows import RECONSTRUCTED, SUPERSEDED, digest
from relay.store.sqlite.accept import Acceptance, Arrival
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import IN_PERIODS
from relay.store.sqlite.operator_writes import Moved
from relay.store.sqlite.ordering import HELD_BACK

CUT_OFF = "UPDATE reconciliations SET state = 'failed' WHERE state = 'running'"
"""Ends the runs that the last relay did not live to end."""

_ADD = f"""
INSERT INTO events
    (seq, source, id, kind, created_at, received_at, digest, headers, body, reconstructed)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, x'', ?8, {RECONSTRUCTED}
WHERE ?9 IS NULL
    OR NOT EXISTS (SELECT 1 {IN_PERIODS.format(periods="?9", source="?2", id="?3")})
"""
_DELIVER = f"""
INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason, turn)
VALUES (?1, ?2, ?3, ?4 + {HELD_BACK.format(sink="?2", turn="?6")}, iif(?5 IS NULL, NULL, ?4),
    ?5, ?6)
"""
_FIND = f"SELECT seq FROM events WHERE source = ? AND id = ? AND reconstructed = {RECONSTRUCTED}"
_DELIVERIES = "SELECT sink, status FROM deliveries WHERE event = ?"
_WITHDRAW = """
UPDATE deliveries SET status = 'discarded', settled_at = ?, reason = 'superseded by the original'
WHERE event = ? AND sink = ?
"""
_SUPERSEDE = f"UPDATE events SET reconstructed = {SUPERSEDED} WHERE seq = ?"
_SETTLE = """
INSERT INTO deliveries (event, sink, status, due_at, settled_at, reason)
VALUES (?, ?, 'discarded', ?, ?, ?)
"""


class Superseded(NamedTuple):
    """Outcome of an original whose reconstruction is known."""

    outcome: Outcome
    verdicts: Sequence[Verdict]
    """The sinks that get the original."""
    moved: Moved


def add(
    db: sqlite3.Connection,
    event: Event,
    verdicts: Sequence[Verdict],
    *,
    acceptance: Acceptance,
    person: bytes | None,
) -> tuple[ReconstructionOutcome, int]:
    """Insert a reconstruction unless it is known, or its person's digest was erased."""
    if person is not None and is_erased(db, person):
        return "erased", 0
    if acceptance.recent_digest(db, event) is not None:
        return "known", 0
    seq = acceptance.next_numbers()
    row = (seq, event.source, event.id, event.kind, event.created_at, event.received_ms)
    elsewhere = acceptance.elsewhere(event)
    if not db.execute(_ADD, (*row, digest(event.body), event.body, elsewhere)).rowcount:
        return "known", 0
    acceptance.remember(event, seq)
    for verdict in verdicts:
        reason = verdict.why if verdict.outcome == "fails" else None
        status = Status.PENDING if reason is None else Status.DEAD
        turn = acceptance.turn(verdict)
        db.execute(_DELIVER, (seq, verdict.sink, status, event.received_ms, reason, turn))
    return "accepted", seq


def supersede(
    db: sqlite3.Connection,
    arrival: Arrival,
    known: str,
    *,
    acceptance: Acceptance,
    claim: Callable[[int], Collection[str]],
) -> Superseded:
    """Insert an original, and withdraw its reconstruction from sinks that were not sent it.

    `known` is the reconstruction's id. `claim` keeps its deliveries from being leased, and returns
    the sinks that may be taking it now: they keep it and do not get the original.
    """
    event, verdicts, total = arrival
    row = db.execute(_FIND, (event.source, known)).fetchone()
    if row is None:
        return Superseded(acceptance(db, [arrival])[0], verdicts, Counter())
    (seq,) = row
    in_flight = claim(seq)
    standing = {sink: Status(status) for sink, status in db.execute(_DELIVERIES, (seq,))}
    sent = {sink for sink, status in standing.items() if status is Status.DELIVERED}.union(
        sink for sink in in_flight if sink in standing
    )
    wanted = [verdict for verdict in verdicts if verdict.sink not in sent]
    (outcome,) = acceptance(db, [(event, wanted, total)])
    if outcome != "accepted":
        return Superseded(outcome, (), Counter())
    original = acceptance.last
    now_ms = event.received_ms
    spared = [verdict.sink for verdict in verdicts if verdict.sink in sent]
    values = (now_ms, now_ms, SENT_RECONSTRUCTED)
    db.executemany(_SETTLE, [(original, sink, *values) for sink in spared])
    moved: Moved = Counter()
    for sink, status in standing.items():
        if sink not in sent and status in (Status.PENDING, Status.DEAD):
            db.execute(_WITHDRAW, (now_ms, seq, sink))
            moved[sink, status] -= 1
            moved[sink, Status.DISCARDED] += 1
    # The audience takes it out later, because that writes whole days anew.
    db.execute(_SUPERSEDE, (seq,))
    return Superseded(outcome, wanted, moved)
