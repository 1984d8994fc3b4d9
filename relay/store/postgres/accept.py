"""Insertion of events with their deliveries, many in one statement."""

from collections.abc import Sequence

from relay.core.event import Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.core.totals import Total
from relay.store.ordering import OrderingKeys
from relay.store.postgres.driver import Query, Steps
from relay.store.postgres.text import storable
from relay.store.postgres.write_queue import WRITTEN
from relay.store.rows import digest

Arrival = tuple[Event, Sequence[Verdict], Total]
"""An event, its sinks, and the total that it adds to."""

_LOCK_CLASS = 8101
"""Tells the lock of acceptances from other advisory locks."""
LOCK_SHARED = f"pg_advisory_xact_lock_shared({_LOCK_CLASS}, hashtext('relay.'))"
"""Held by each statement that inserts events, from before it draws their numbers to its commit."""
LOCK_ALONE = f"SELECT pg_advisory_xact_lock({_LOCK_CLASS}, hashtext('relay.'))"
"""Waits for the acceptances under way, and holds new ones up, to the end of the transaction."""

# Numbers follow the arrival, but the rows are inserted in the order of their unique key: relays
# that insert the same events in opposite orders would wait for each other for ever.
# A delivery is due by the earlier one of two times: a relay learns only with its next survey that
# the database's clock was set back, and what it accepts until then must not wait.
ADD = f"""
WITH shared AS MATERIALIZED (
    SELECT {LOCK_SHARED},
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
arrivals AS MATERIALIZED (
    SELECT
        nextval('relay.events_seq_seq') AS seq, a.n, a.source COLLATE "C" AS source,
        a.id COLLATE "C" AS id, a.kind, a.created_at, a.received_at, a.digest, a.headers, a.body,
        a.known_kind, a.milestone, shared.now
    FROM shared, unnest(
        %(source)b::text[], %(id)b::text[], %(kind)b::text[], %(created_at)b::text[],
        %(received_at)b::bigint[], %(digest)b::bytea[], %(headers)b::bytea[], %(body)b::bytea[],
        %(known_kind)b::text[], %(milestone)b::text[]
    ) WITH ORDINALITY AS a (
        source, id, kind, created_at, received_at, digest, headers, body, known_kind, milestone, n
    )
),
fresh AS (
    INSERT INTO relay.events
        (seq, source, id, kind, created_at, received_at, digest, headers, body)
    SELECT seq, source, id, kind, created_at, received_at, digest, headers, body
    FROM (SELECT DISTINCT ON (source, id) * FROM arrivals ORDER BY source, id, n) AS first
    ORDER BY source, id
    ON CONFLICT (source, id) DO NOTHING
    RETURNING seq
),
queued AS (
    INSERT INTO relay.deliveries (event, sink, status, due_at, settled_at, reason, turn)
    SELECT
        seq, v.sink, CASE WHEN v.why IS NULL THEN 'pending' ELSE 'dead' END,
        least(a.received_at, a.now),
        CASE WHEN v.why IS NOT NULL THEN a.received_at END, v.why, v.turn
    FROM unnest(
        %(place)b::bigint[], %(sink)b::text[], %(turn)b::bigint[], %(why)b::text[]
    ) AS v (n, sink, turn, why)
    JOIN arrivals AS a USING (n) JOIN fresh USING (seq)
    ORDER BY seq, v.sink
),
counted AS (
    INSERT INTO relay.added_totals (source, kind, milestone, events, last_at)
    SELECT source, known_kind, milestone, count(*), max(received_at)
    FROM arrivals JOIN fresh USING (seq) GROUP BY 1, 2, 3
)
SELECT n FROM arrivals JOIN fresh USING (seq)
"""
# A statement that waited for another transaction to insert an event does not see its row.
_KNOWN = f"""
WITH written AS MATERIALIZED ({WRITTEN})
SELECT a.n, e.digest
FROM written, unnest(%(n)b::bigint[], %(source)b::text[], %(id)b::text[]) AS a (n, source, id),
    LATERAL (SELECT digest FROM relay.events WHERE source = a.source AND id = a.id OFFSET 0) AS e
"""
_KEEP = f"""
WITH written AS MATERIALIZED ({WRITTEN})
INSERT INTO relay.unreadable (source, digest, received_at, reason, headers, body)
SELECT DISTINCT ON (a.source COLLATE "C", a.digest)
    a.source, a.digest, a.received_at, a.reason, a.headers, a.body
FROM written, unnest(
    %(source)b::text[], %(digest)b::bytea[], %(received_at)b::bigint[], %(reason)b::text[],
    %(headers)b::bytea[], %(body)b::bytea[]
) WITH ORDINALITY AS a (source, digest, received_at, reason, headers, body, n)
ORDER BY a.source COLLATE "C", a.digest, a.n
ON CONFLICT (source, digest) DO NOTHING
"""


class Acceptance:
    """Inserts events with their deliveries, and compares known ones with the stored event."""

    def __init__(self, turns: OrderingKeys) -> None:
        self._turns = turns

    def __call__(self, arrivals: Sequence[Arrival]) -> Steps[list[Outcome]]:
        outcomes: dict[int, Outcome] = {}
        left = list(range(len(arrivals)))
        while left:
            new = yield from self._add([arrivals[place] for place in left])
            outcomes.update((left[n - 1], "accepted") for n in new)
            left = [place for place in left if place not in outcomes]
            if left:
                known = yield from _compare({place: arrivals[place][0] for place in left})
                outcomes.update(known)
                # Retention may have removed one in between, which is then new.
                left = [place for place in left if place not in outcomes]
        return [outcomes[place] for place in range(len(arrivals))]

    def turn(self, verdict: Verdict) -> int | None:
        """Return the turn of a new delivery, if its sink is ordered and it is not dead."""
        if verdict.outcome == "fails" or verdict.key is None:
            return None
        return self._turns.live(verdict.sink, verdict.key)

    def _add(self, arrivals: Sequence[Arrival]) -> Steps[list[int]]:
        """Return the places of the new events, from 1."""
        events = [event for event, _, _ in arrivals]
        verdicts = [
            (place, each) for place, (_, found, _) in enumerate(arrivals, 1) for each in found
        ]
        values = {
            "source": [event.source for event in events],
            "id": [event.id for event in events],
            "kind": [event.kind for event in events],
            "created_at": [
                None if event.created_at is None else storable(event.created_at) for event in events
            ],
            "received_at": [event.received_ms for event in events],
            "digest": [digest(event.body) for event in events],
            "headers": [event.headers for event in events],
            "body": [event.body for event in events],
            "known_kind": [total.kind for _, _, total in arrivals],
            "milestone": [total.milestone for _, _, total in arrivals],
            "place": [place for place, _ in verdicts],
            "sink": [each.sink for _, each in verdicts],
            "turn": [self.turn(each) for _, each in verdicts],
            "why": [
                storable(each.why) if each.outcome == "fails" else None for _, each in verdicts
            ],
        }
        rows = yield Query(ADD, values)
        return [n for (n,) in rows]


def _compare(events: dict[int, Event]) -> Steps[dict[int, Outcome]]:
    values = {
        "n": list(events),
        "source": [event.source for event in events.values()],
        "id": [event.id for event in events.values()],
    }
    rows = yield Query(_KNOWN, values)
    return {
        place: "duplicate" if known == digest(events[place].body) else "conflict"
        for place, known in rows
    }


def keep(requests: Sequence[Unreadable]) -> Steps[list[Outcome]]:
    """Insert unreadable requests, once per body."""
    values = {
        "source": [request.source for request in requests],
        "digest": [request.digest for request in requests],
        "received_at": [request.received_ms for request in requests],
        "reason": [storable(request.reason) for request in requests],
        "headers": [request.headers for request in requests],
        "body": [request.body for request in requests],
    }
    yield Query(_KEEP, values)
    return ["unreadable"] * len(requests)
