"""Deliveries of replays in PostgreSQL: opened, and taken back when a replay is cancelled.

Each may run twice, because the outcome of a commit can be unknown.
"""

from typing import NamedTuple

from relay.store.dead_letters import Keys
from relay.store.ordering import OrderingKeys
from relay.store.postgres import orders
from relay.store.postgres.driver import Database
from relay.store.replays import Opening, Replay, advance, held

TRIED_SINCE = """
EXISTS (
    SELECT 1 FROM (
        SELECT number FROM relay.attempts WHERE event = d.event AND sink = d.sink OFFSET 0
    ) AS a WHERE a.number > {attempt}
)
"""
"""Whether one of `deliveries d` was tried after an attempt.

Never by a range of numbers, in which all attempts since are."""

# Retention and erasures wait for it, and see the new deliveries then.
_HOLD_EVENTS = """
SELECT 1 FROM relay.events WHERE seq = ANY(%(event)b::bigint[]) ORDER BY seq FOR SHARE
"""
# A row is found by its primary key, and the found ones are changed by their places: a condition on
# columns that have another index can make the planner read all that a replay has opened.
_ROW = """
LATERAL (
    SELECT d.*, d.ctid AS place FROM relay.deliveries d
    WHERE d.event = w.event AND d.sink = w.sink OFFSET 0 FOR UPDATE
) AS d
"""
_OPEN = f"""
WITH planned AS MATERIALIZED (
    SELECT w.event, w.sink, w.turn, d.place, d.status,
        d.replay IS NOT DISTINCT FROM %(replay)s AS is_opened,
        d.turn IS NULL AND w.turn IS NOT NULL AS lacks_turn
    FROM (
        SELECT * FROM unnest(%(event)b::bigint[], %(sink)b::text[], %(turn)b::bigint[])
            AS w (event, sink, turn) ORDER BY event, sink COLLATE "C"
    ) AS w
    JOIN LATERAL (SELECT body FROM relay.events WHERE seq = w.event OFFSET 0) AS e ON TRUE
    LEFT JOIN {_ROW} ON TRUE
    WHERE e.body IS NOT NULL AND NOT {TRIED_SINCE.format(attempt="%(attempt)s")}
),
reopened AS (
    UPDATE relay.deliveries d
    SET status = 'pending', replayed_from = d.status, attempts = 0, due_at = %(now)s,
        first_attempt_at = NULL, tries = 0, tried_at = NULL, replay = %(replay)s, turn = p.turn
    FROM planned p
    WHERE d.ctid = p.place AND NOT p.is_opened AND p.status = ANY(%(reopened)b::text[])
    RETURNING 1
),
lined_up AS (
    UPDATE relay.deliveries d SET turn = p.turn
    FROM planned p
    WHERE d.ctid = p.place AND p.is_opened AND p.status = 'pending' AND p.lacks_turn
),
added AS (
    INSERT INTO relay.deliveries (event, sink, status, due_at, replay, turn)
    SELECT event, sink, 'pending', %(now)s, %(replay)s, turn FROM planned
    WHERE place IS NULL AND %(adds)s
    ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM reopened) + (SELECT count(*) FROM added)
"""
_OF_CANCELLED = """
SELECT d.event, d.sink, EXISTS (
    SELECT 1 FROM relay.ownership o WHERE o.sink = d.sink AND o.expires_at > clock_timestamp()
)
FROM relay.deliveries d JOIN relay.replays r ON r.id = d.replay
WHERE d.replay = %s AND r.state = 'cancelled' AND d.status = 'pending' AND d.event >= %s
ORDER BY d.event LIMIT %s
"""
NAMED = f"""
WITH named AS MATERIALIZED (
    SELECT d.* FROM (
        SELECT * FROM unnest(%(event)b::bigint[], %(sink)b::text[]) AS w (event, sink)
        ORDER BY event, sink COLLATE "C"
    ) AS w, {_ROW}
)
"""
"""The deliveries of some keys, locked in this order."""
_RESTORE = f"""
{NAMED},
opened AS MATERIALIZED (
    SELECT place, replayed_from FROM named WHERE replay = %(replay)s AND status = 'pending'
),
restored AS (
    UPDATE relay.deliveries d SET status = o.replayed_from, replayed_from = NULL, turn = NULL
    FROM opened o WHERE d.ctid = o.place AND o.replayed_from IS NOT NULL
    RETURNING 1
),
removed AS (
    DELETE FROM relay.deliveries d
    USING opened o WHERE d.ctid = o.place AND o.replayed_from IS NULL
    RETURNING 1
)
UPDATE relay.replays
SET opened = opened - (SELECT count(*) FROM restored) - (SELECT count(*) FROM removed)
WHERE id = %(replay)s
"""


class Opened(NamedTuple):
    """A pending delivery of a replay."""

    event: int
    sink: str
    is_owned: bool
    """Whether a relay dispatches its sink."""


def open_deliveries(db: Database, step: Opening, keys: OrderingKeys) -> Replay:
    """Make deliveries pending and advance the replay, unless it has ended.

    Skips deliveries that this replay has opened before or that were tried since it started, and
    events that have lost their body. An opened one gets the turn that it lacks.
    """
    current = held(db, step.replay)
    if current.state != "running":
        return current
    reopened = current.selection.reopened
    values = {
        "event": [each.seq for each in step.deliveries],
        "sink": [each.sink for each in step.deliveries],
        "turn": [
            None if each.key is None else keys.replayed(each.sink, each.key)
            for each in step.deliveries
        ],
        "replay": current.id,
        "attempt": current.until.attempt,
        "now": step.now_ms,
        "reopened": [status for status in reopened if status is not None],
        "adds": None in reopened,
    }
    db.execute(_HOLD_EVENTS, values)
    opened = db.execute(_OPEN, values).fetchall()[0][0]
    orders.count_opening(db)
    return advance(db, current.id, opened=opened, cursor=step.cursor)


def of_cancelled(db: Database, number: int, *, since: int, limit: int) -> list[Opened]:
    """Return pending deliveries of a cancelled replay, of its first events from a number on."""
    return [Opened(*row) for row in db.execute(_OF_CANCELLED, (number, since, limit)).fetchall()]


def restore(db: Database, number: int, deliveries: Keys) -> None:
    """Restore pending deliveries of a replay to their status before it."""
    db.execute(_RESTORE, {**named(deliveries), "replay": number})


def named(deliveries: Keys) -> dict[str, object]:
    """Return the values of `NAMED`."""
    return {"event": [event for event, _ in deliveries], "sink": [sink for _, sink in deliveries]}
