"""Insertion of reconstructed events, and of the originals that supersede them.

Any member may receive an original. Nearly always it knows of the reconstruction then; otherwise
the count of the audience finds the two, and does the same afterwards.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from relay.core import reconstruction
from relay.core.delivery import Delivery
from relay.core.event import VIDEO_WATCHED, Event, Outcome, engagement
from relay.core.routing import Verdict
from relay.store.audience.counting import Uncounted
from relay.store.postgres.accept import LOCK_ALONE, Acceptance, Arrival
from relay.store.postgres.driver import Database, Query, Steps
from relay.store.postgres.text import storable
from relay.store.reconstructions import SENT_RECONSTRUCTED, ReconstructionOutcome
from relay.store.rows import RECONSTRUCTED, SUPERSEDED, digest, document_of

_NO_EVENT = (1 << 63) - 1

_ORIGINALS = "reconstructed = 0 AND (kind = 'lead.captured' OR starts_with(kind, 'video.'))"
# Any other does not matter: where originals never pause, one always arrives in between.
_MAY_BE_ITS_OWN = """
kind = %(kind)s AND (position(E'\\\\x5c'::bytea IN body) > 0 OR (
    (%(video)s::bytea IS NULL OR position(%(video)s::bytea IN body) > 0)
    AND (
        %(address)s::text IS NULL
        OR position(%(address)s IN lower(encode(body, 'escape') COLLATE "C")) > 0
    )
))
"""
# Alone, so that each original is either in the store and seen here, or accepted afterwards, with a
# larger number. One message, so that a relay that stops cannot leave the lock behind.
_ADD = f"""
{LOCK_ALONE};
WITH made AS (
    INSERT INTO relay.events
        (source, id, kind, created_at, received_at, digest, headers, body, reconstructed)
    SELECT %(source)s, %(id)s, %(kind)s, %(created_at)s, %(received_at)s, %(digest)s,
        ''::bytea, %(body)s, {RECONSTRUCTED}
    WHERE NOT EXISTS (SELECT 1 FROM relay.erasures WHERE person = %(person)s)
        AND NOT EXISTS (
            SELECT 1 FROM relay.events
            WHERE seq > %(after)s AND source = %(source)s AND {_ORIGINALS} AND {_MAY_BE_ITS_OWN}
        )
    ON CONFLICT (source, id) DO NOTHING RETURNING seq
),
queued AS (
    INSERT INTO relay.deliveries (event, sink, status, due_at, settled_at, reason, turn)
    SELECT
        seq, v.sink, CASE WHEN v.why IS NULL THEN 'pending' ELSE 'dead' END,
        least(
            %(received_at)s, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
        ),
        CASE WHEN v.why IS NOT NULL THEN %(received_at)s END, v.why, v.turn
    FROM made, unnest(%(sink)b::text[], %(turn)b::bigint[], %(why)b::text[]) AS v (sink, turn, why)
)
SELECT seq FROM made
"""
_WHY_NOT = """
SELECT EXISTS (SELECT 1 FROM relay.erasures WHERE person = %(person)s),
    EXISTS (SELECT 1 FROM relay.events WHERE source = %(source)s AND id = %(id)s)
"""
_ARRIVED = f"""
SELECT seq, kind, body FROM relay.events
WHERE seq > %s AND seq <= %s AND source = %s AND {_ORIGINALS} AND body IS NOT NULL
ORDER BY seq LIMIT 200
"""
_FIND = f"""
SELECT seq FROM relay.events
WHERE source = %s AND id = ANY(%b::text[]) AND reconstructed = {RECONSTRUCTED}
ORDER BY seq LIMIT 1 FOR UPDATE
"""
_KNOWN = f"""
SELECT source, id FROM relay.events
WHERE (source, id) IN (SELECT * FROM unnest(%b::text[], %b::text[]))
    AND reconstructed = {RECONSTRUCTED}
"""
_DELIVERIES = """
SELECT sink, status = 'delivered' OR status = 'pending' AND leased
FROM relay.deliveries WHERE event = %s ORDER BY sink FOR UPDATE
"""
# Waits for an original that withdraws the delivery. Rows are found and ordered as in a settlement.
_LEASE = """
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(event)b::bigint[], %(sink)b::text[])
        WITH ORDINALITY AS w (event, sink, n) ORDER BY event, sink COLLATE "C"
),
found AS MATERIALIZED (
    SELECT w.n, x.place, 1 AS is_found FROM wanted AS w, LATERAL (
        SELECT ctid AS place FROM relay.deliveries
        WHERE event = w.event AND sink = w.sink COLLATE "C" OFFSET 0
    ) AS x
)
UPDATE relay.deliveries AS d SET leased = true FROM found AS f
WHERE d.ctid = f.place AND f.is_found = 1 AND d.status = 'pending'
RETURNING f.n
"""
_ORIGINAL = "SELECT seq FROM relay.events WHERE source = %s AND id = %s"
_SPARE = """
INSERT INTO relay.deliveries (event, sink, status, due_at, settled_at, reason)
SELECT %(event)s, sink, 'discarded', %(now)s, %(now)s, %(reason)s
FROM unnest(%(sinks)b::text[]) AS spared (sink) ORDER BY sink COLLATE "C"
ON CONFLICT (event, sink) DO UPDATE
SET status = 'discarded', settled_at = excluded.settled_at, reason = excluded.reason, turn = NULL
WHERE deliveries.status = 'pending'
"""
_WITHDRAW = """
UPDATE relay.deliveries SET status = 'discarded', settled_at = %(now)s, turn = NULL,
    reason = 'superseded by the original'
WHERE event = %(event)s AND status IN ('pending', 'dead') AND sink <> ALL(%(sent)b::text[])
"""
_SUPERSEDE = f"UPDATE relay.events SET reconstructed = {SUPERSEDED} WHERE seq = %s"
_ANY_OPEN = f"SELECT 1 FROM relay.events WHERE reconstructed = {RECONSTRUCTED} LIMIT 1"
_SINKS = "SELECT sink FROM relay.deliveries WHERE event = %s"


class Superseded(NamedTuple):
    """Outcome of an original whose reconstruction is known."""

    outcome: Outcome
    verdicts: Sequence[Verdict]
    """The sinks that get the original."""


def add(
    db: Database,
    event: Event,
    verdicts: Sequence[Verdict],
    *,
    acceptance: Acceptance,
    person: bytes | None,
    after: int | None,
) -> ReconstructionOutcome | None:
    """Insert a reconstruction unless it is known, or its person's digest was erased.

    Returns None, and inserts nothing, if originals have arrived after an event that may be its own.
    `after` is None where that does not matter.
    """
    _, video, _, address = engagement(event.kind, event.document())
    values: dict[str, Any] = {
        "source": event.source,
        "id": event.id,
        "kind": event.kind,
        "created_at": event.created_at,
        "received_at": event.received_ms,
        "digest": digest(event.body),
        "body": event.body,
        "person": person,
        "after": _NO_EVENT if after is None else after,
        "sink": [each.sink for each in verdicts],
        "turn": [acceptance.turn(each) for each in verdicts],
        "video": video.encode() if video and event.kind == VIDEO_WATCHED else None,
        "address": address.lower() if address is not None and address.isascii() else None,
        "why": [storable(each.why) if each.outcome == "fails" else None for each in verdicts],
    }
    *_, rows = db.execute_all(_ADD, values)
    if rows:
        return "accepted"
    ((is_erased, is_known),) = db.execute(_WHY_NOT, values).fetchall()
    if is_erased:
        return "erased"
    return "known" if is_known else None


def arrived(db: Database, source: str, *, after: int, upto: int) -> Iterator[str]:
    """Return the ids that reconstructions of the originals in between have."""
    while rows := db.execute(_ARRIVED, (after, upto, source)).fetchall():
        for seq, kind, body in rows:
            document = document_of(body)
            if document is not None:
                yield from reconstruction.ids(kind, document)
            after = seq


def lease(deliveries: Sequence[Delivery]) -> Steps[list[bool]]:
    """Note that reconstructions may be on their way from now on, to the end of their attempts.

    False for one that was withdrawn meanwhile, which must not be sent.
    """
    leased: set[Delivery] = set()
    # The second time for those that another transaction changed at the same time.
    for _ in range(2):
        left = [each for each in deliveries if each not in leased]
        if left:
            values = {"event": [each.seq for each in left], "sink": [each.sink for each in left]}
            rows = yield Query(_LEASE, values)
            leased |= {left[n - 1] for (n,) in rows}
    return [each in leased for each in deliveries]


def supersede(db: Database, arrival: Arrival, known: str, *, acceptance: Acceptance) -> Superseded:
    """Insert an original, and withdraw its reconstruction from sinks that were not sent it.

    `known` is the reconstruction's id. Sinks that it may be on its way to keep it, and do not get
    the original.
    """
    event, verdicts, total = arrival
    row = db.execute(_FIND, (event.source, [known])).fetchone()
    if row is None:
        return Superseded(db.perform(acceptance([arrival]))[0], verdicts)
    (seq,) = row
    sent = _sent(db, seq)
    wanted = [verdict for verdict in verdicts if verdict.sink not in sent]
    (outcome,) = db.perform(acceptance([(event, wanted, total)]))
    if outcome != "accepted":
        return Superseded(outcome, ())
    ((original,),) = db.execute(_ORIGINAL, (event.source, event.id)).fetchall()
    spared = [verdict.sink for verdict in verdicts if verdict.sink in sent]
    _withdraw(db, seq, sent, original, spared, now_ms=event.received_ms)
    return Superseded(outcome, wanted)


def supersede_counted(db: Database, events: Sequence[Uncounted]) -> None:
    """Let originals that were accepted as any other event supersede their reconstructions."""
    if db.execute(_ANY_OPEN).fetchone() is None:
        return
    originals: list[tuple[Uncounted, Sequence[str]]] = []
    for event in events:
        document = None if event.is_reconstructed else document_of(event.body)
        if document is not None:
            originals.append((event, reconstruction.ids(event.kind, document)))
    keys = [(event.source, id_) for event, ids in originals for id_ in ids]
    # All at once: hardly any has one, and others wait for the connection meanwhile.
    known = set(db.execute(_KNOWN, ([key[0] for key in keys], [key[1] for key in keys])))
    for event, ids in originals:
        found = [id_ for id_ in ids if (event.source, id_) in known]
        row = db.execute(_FIND, (event.source, found)).fetchone() if found else None
        if row is not None:
            (seq,) = row
            sent = _sent(db, seq)
            spared = [sink for (sink,) in db.execute(_SINKS, (event.seq,)) if sink in sent]
            _withdraw(db, seq, sent, event.seq, spared, now_ms=event.received_ms)


def _sent(db: Database, seq: int) -> set[str]:
    """Lock the deliveries of a reconstruction; return the sinks that were or are being sent it."""
    return {sink for sink, is_sent in db.execute(_DELIVERIES, (seq,)).fetchall() if is_sent}


def _withdraw(
    db: Database,
    seq: int,
    sent: Collection[str],
    original: int,
    spared: Sequence[str],
    *,
    now_ms: int,
) -> None:
    values = {"event": original, "sinks": list(spared), "now": now_ms, "reason": SENT_RECONSTRUCTED}
    db.execute(_SPARE, values)
    db.execute(_WITHDRAW, {"event": seq, "sent": list(sent), "now": now_ms})
    # The audience takes it out later, because that writes whole days anew.
    db.execute(_SUPERSEDE, (seq,))
