"""Operators' changes in SQL: writes that share transactions with all others.

Each may run twice, because the outcome of a commit can be unknown.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from relay.store.ordering import OrderingKeys
from relay.store.postgres import orders
from relay.store.postgres.driver import Database
from relay.store.postgres.replays import TRIED_SINCE, held
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayState
from relay.store.selection import Selection

_NUMBER = "SELECT nextval('relay.replays_id_seq')"
_BEGIN = """
INSERT INTO relay.replays (id, created_at, selection, state, total, until, attempt)
OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, 'running', %s, %s, %s) ON CONFLICT DO NOTHING
"""
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
# A reload may add a sink or widen a route, so that more are opened than were counted.
_ADVANCE = """
UPDATE relay.replays
SET opened = opened + %(opened)s, total = greatest(total, opened + %(opened)s), cursor = %(cursor)s
WHERE id = %(replay)s
"""
_END = "UPDATE relay.replays SET state = %s, ended_at = %s WHERE id = %s AND state = 'running'"
_OF_CANCELLED = """
SELECT d.event, d.sink, EXISTS (
    SELECT 1 FROM relay.ownership o WHERE o.sink = d.sink AND o.expires_at > clock_timestamp()
)
FROM relay.deliveries d JOIN relay.replays r ON r.id = d.replay
WHERE d.replay = %s AND r.state = 'cancelled' AND d.status = 'pending' AND d.event >= %s
ORDER BY d.event LIMIT %s
"""
_NAMED = f"""
WITH named AS MATERIALIZED (
    SELECT d.* FROM (
        SELECT * FROM unnest(%(event)b::bigint[], %(sink)b::text[]) AS w (event, sink)
        ORDER BY event, sink COLLATE "C"
    ) AS w, {_ROW}
)
"""
_RESTORE = f"""
{_NAMED},
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
_DISCARD = f"""
{_NAMED}
UPDATE relay.deliveries d SET status = 'discarded', settled_at = %(now)s
FROM named n WHERE d.ctid = n.place AND n.status = 'dead'
"""
_DISCARDED = f"""
{_NAMED}
SELECT count(*) FROM named WHERE status = 'discarded' AND settled_at = %(now)s
"""
_GIVE_UP = """
UPDATE relay.deliveries SET status = 'discarded', settled_at = %s, turn = NULL,
    reason = concat_ws(' after: ', 'discarded by an operator', reason)
WHERE event = %s AND sink = %s AND status = 'pending'
"""
_PAUSE = "INSERT INTO relay.paused_sinks VALUES (%s, %s) ON CONFLICT DO NOTHING"
_RESUME = "DELETE FROM relay.paused_sinks WHERE sink = %s"

Keys = Sequence[tuple[int, str]]
"""Deliveries, by event and sink."""


class Opened(NamedTuple):
    """A pending delivery of a replay."""

    event: int
    sink: str
    is_owned: bool
    """Whether a relay dispatches its sink."""


class Opening(NamedTuple):
    """A step of a replay."""

    replay: int
    deliveries: Sequence[PlannedDelivery]
    cursor: int
    now_ms: int


def draw_number(db: Database) -> int:
    """Return the number of a new replay, so that the replay is the same if it is begun twice."""
    return int(db.execute(_NUMBER).fetchall()[0][0])


def begin(
    db: Database, number: int, selection: Selection, *, total: int, until: Mark, now_ms: int
) -> Replay:
    """Store a new replay."""
    text = msgspec.json.encode(selection).decode()
    db.execute(_BEGIN, (number, now_ms, text, total, *until))
    orders.count(db)
    return held(db, number)


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
    db.execute(_ADVANCE, {"opened": opened, "cursor": step.cursor, "replay": current.id})
    orders.count_opening(db)
    return held(db, current.id)


def end(db: Database, number: int, state: ReplayState, *, now_ms: int) -> Replay:
    """End a replay; an ended one stays as it is."""
    db.execute(_END, (state, now_ms, number))
    orders.count(db)
    return held(db, number)


def of_cancelled(db: Database, number: int, *, since: int, limit: int) -> list[Opened]:
    """Return pending deliveries of a cancelled replay, of its first events from a number on."""
    return [Opened(*row) for row in db.execute(_OF_CANCELLED, (number, since, limit)).fetchall()]


def restore(db: Database, number: int, deliveries: Keys) -> None:
    """Restore pending deliveries of a replay to their status before it."""
    db.execute(_RESTORE, {**_named(deliveries), "replay": number})


def discard(db: Database, letters: Keys, now_ms: int) -> int:
    """Discard dead letters; return how many were discarded at this time."""
    values = {**_named(letters), "now": now_ms}
    db.execute(_DISCARD, values)
    return int(db.execute(_DISCARDED, values).fetchall()[0][0])


def give_up(db: Database, event: int, sink: str, *, now_ms: int) -> bool:
    """Discard a pending delivery; False if there was none."""
    db.execute(_GIVE_UP, (now_ms, event, sink))
    orders.count(db)
    values = {**_named([(event, sink)]), "now": now_ms}
    return bool(db.execute(_DISCARDED, values).fetchall()[0][0])


def pause(db: Database, sink: str, *, now_ms: int) -> None:
    """Note that a sink is paused; one that is paused already stays so since then."""
    db.execute(_PAUSE, (sink, now_ms))
    orders.count(db)


def resume(db: Database, sink: str) -> None:
    """Note that a sink is not paused."""
    db.execute(_RESUME, (sink,))
    orders.count(db)


def _named(deliveries: Keys) -> dict[str, object]:
    return {"event": [event for event, _ in deliveries], "sink": [sink for _, sink in deliveries]}
