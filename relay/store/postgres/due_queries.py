"""Queries for due deliveries: one page of a tier at a time, and when to read the next."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from relay.core.delivery import Delivery
from relay.store import FirstDue, Tier
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.fences import READ_GUARD, Fence, NotOwned
from relay.store.rows import event_of, is_damaged
from relay.store.tiers import OF_TIER, Position

LEASE_BYTES_MAX = 4 << 20
"""Total size of bodies, in bytes, at which a lease ends."""

_WINDOWS = (64, 256, 1024, 4096)
"""Deliveries that one page passes over at most; few numbers, because each is a plan of its own."""

_COLUMNS = "event, due_at, attempts, first_attempt_at, replay, turn, tries, tried_at"
# In one array, because each type that a number of its own happened to need would be another plan.
_PLACE = "(%(places)b::bigint[])[{}]"
_SEEN = """
(
    SELECT '{tier}' AS tier, {limit} AS wanted, {columns} FROM relay.deliveries
    WHERE sink = %(sink)s AND status = 'pending' AND {belongs}
        AND due_at <= %(now)s AND (due_at, event) > ({behind_due}, {behind_event})
    ORDER BY due_at, event LIMIT {window}
)
"""
# The first of each turn that has one left: its predecessor ended since the last read.
_FIRSTS = f"""
SELECT 'first' AS tier, {_PLACE.format(1)} AS wanted, x.*
FROM unnest(%(turns)b::bigint[]) AS ended (turn), LATERAL (
    SELECT {_COLUMNS} FROM relay.deliveries
    WHERE sink = %(sink)s AND status = 'pending' AND turn = ended.turn
    ORDER BY event LIMIT 1
) AS x
WHERE x.due_at <= %(now)s
"""
_NEXT_DUE = """
(
    SELECT min(due_at) FROM relay.deliveries
    WHERE sink = %(sink)s AND status = 'pending' AND {belongs} AND due_at > %(now)s
)
"""
# One statement, so that all of it is seen as of one moment. It has no join that a wrong guess at
# the number of rows could repeat, and reads no body that is left out. It returns no row if another
# relay may own the sink, and one without an event if nothing was seen.
_DUE = f"""
WITH owned AS MATERIALIZED ({READ_GUARD}),
seen AS MATERIALIZED ({{seen}}),
judged AS (
    SELECT *, event <> ALL(%(leased)b::bigint[])
        AND (turn IS NULL OR (
            turn <> ALL(%(busy)b::bigint[])
            AND event = (
                SELECT min(event) FROM relay.deliveries AS first
                WHERE first.sink = %(sink)s AND first.turn = seen.turn AND first.status = 'pending'
            )
        ))
        AND (replay IS NULL OR NOT EXISTS (
            SELECT 1 FROM relay.replays AS r WHERE r.id = seen.replay AND r.state = 'cancelled'
        )) AS free
    FROM seen
),
sized AS (
    SELECT j.*, e.*,
        count(e.body) OVER in_order AS place,
        sum(octet_length(e.body)) OVER in_order - octet_length(e.body) AS bytes_before
    FROM judged AS j LEFT JOIN LATERAL (
        SELECT * FROM relay.events WHERE seq = j.event AND j.free AND body IS NOT NULL OFFSET 0
    ) AS e ON true
    WINDOW in_order AS (
        PARTITION BY j.tier ORDER BY j.due_at, j.event ROWS UNBOUNDED PRECEDING
    )
),
chosen AS (
    SELECT *, CASE
        WHEN seq IS NOT NULL THEN place <= wanted AND bytes_before < {LEASE_BYTES_MAX}
    END AS taken
    FROM sized
)
SELECT {_COLUMNS}, taken, source, id, kind, created_at, received_at,
    CASE WHEN taken THEN body END, headers, reconstructed, digest, tier, {{next_due}}
FROM owned LEFT JOIN chosen ON true ORDER BY tier, due_at, event
"""
# Of a turn only the first is free. A window, because all of a long backlog may wait for others.
_FIRST_OF_TIER = f"""
SELECT due_at, turn IS NULL OR event = (
    SELECT min(event) FROM relay.deliveries AS first
    WHERE first.sink = own.sink AND first.turn = seen.turn AND first.status = 'pending'
) AS free
FROM (
    SELECT due_at, event, turn, replay FROM relay.deliveries AS d
    WHERE d.sink = own.sink AND status = 'pending' AND {{belongs}} AND due_at <= %(now)s
    ORDER BY due_at, event LIMIT {_WINDOWS[-1]}
) AS seen
WHERE replay IS NULL OR NOT EXISTS (
    SELECT 1 FROM relay.replays AS r WHERE r.id = seen.replay AND r.state = 'cancelled'
)
"""
_FIRSTS_OF_TIERS = " UNION ALL ".join(
    _FIRST_OF_TIER.format(belongs=belongs) for belongs in OF_TIER.values()
)
_FIRST_DUE = f"""
SELECT own.sink,
    (array_agg(tier.due_at ORDER BY tier.due_at) FILTER (WHERE tier.free))[own.under_way + 1],
    coalesce(bool_or(NOT tier.free), false)
FROM (
    SELECT sink COLLATE "C" AS sink, under_way
    FROM unnest(%(sinks)b::text[], %(under_way)b::bigint[]) AS asked (sink, under_way)
) AS own LEFT JOIN LATERAL ({_FIRSTS_OF_TIERS}) AS tier ON true
GROUP BY own.sink, own.under_way
"""
_TURN, _TAKEN, _EVENT, _BODY, _DIGEST, _TIER, _NEXT = 5, 8, slice(9, 17), 14, 17, 18, 19
"""Columns of `_DUE`."""


class Due(NamedTuple):
    """A delivery that is due."""

    tier: Tier
    position: Position
    delivery: Delivery
    is_damaged: bool


class PageRequest(NamedTuple):
    """Deliveries to read from one tier."""

    behind: Position
    limit: int


class DuePage(NamedTuple):
    """Some due deliveries of one tier."""

    due: list[Due]
    last: Position
    """The last delivery that was read."""
    more: bool
    """Whether some behind `last` may be due."""


class DueDeliveries(NamedTuple):
    """Due deliveries of several tiers."""

    by_tier: Mapping[Tier, DuePage]
    next_ms: int | None
    """The earliest due time of any of them after now."""


class DueQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for due deliveries of one sink that are not leased.

    Of those with the same turn only the first is due, and none of `busy` turns.
    """

    sink: str
    fence: Fence | None
    now_ms: int
    leased: Sequence[int]
    busy: Sequence[int]

    def values(self) -> dict[str, object]:
        holder, history, number = self.fence or (None, None, None)
        return {
            "sink": self.sink,
            "holder": holder,
            "history": history,
            "fence": number,
            "now": self.now_ms,
            "leased": self.leased,
            "busy": self.busy,
        }


def due_pages(db: Database, query: DueQuery, wanted: Mapping[Tier, PageRequest]) -> DueDeliveries:
    """Return the longest due deliveries of each tier behind a position; raises NotOwned."""
    most = max(each.limit for each in wanted.values()) + len(query.leased)
    window = next((size for size in _WINDOWS if size >= most), _WINDOWS[-1])
    places = [number for (behind, limit) in wanted.values() for number in (*behind, limit)]
    rows = _rows(db, _due_sql(tuple(wanted), window), {"places": places, **query.values()})
    pages = {
        tier: _page_of(query.sink, [row for row in rows if row[_TIER] == tier], behind, window)
        for tier, (behind, _) in wanted.items()
    }
    return DueDeliveries(pages, rows[0][_NEXT])


def first_of_turns(
    db: Database, query: DueQuery, turns: Sequence[int], *, limit: int
) -> tuple[list[Due], frozenset[int]]:
    """Return the first due delivery of each turn, and the turns of those beyond the limit.

    Raises NotOwned.
    """
    values = {"turns": turns, "places": [limit], **query.values()}
    rows = _rows(db, _DUE.format(seen=_FIRSTS, next_due="NULL"), values)
    due = [_due(query.sink, row) for row in rows if row[_TAKEN]]
    return due, frozenset(row[_TURN] for row in rows if row[_TAKEN] is False)


def first_due(db: Database, sinks: Mapping[str, int], *, now_ms: int) -> dict[str, FirstDue]:
    """Return what each sink could send next; takes the number of its deliveries under way."""
    values = {"sinks": list(sinks), "under_way": list(sinks.values()), "now": now_ms}
    rows = db.execute(_FIRST_DUE, values).fetchall()
    return {sink: FirstDue(due_ms=due_ms, is_held=is_held) for sink, due_ms, is_held in rows}


@cache
def _due_sql(tiers: Sequence[Tier], window: int) -> str:
    seen = [
        _SEEN.format(
            tier=tier,
            columns=_COLUMNS,
            belongs=OF_TIER[tier],
            behind_due=_PLACE.format(first),
            behind_event=_PLACE.format(first + 1),
            limit=_PLACE.format(first + 2),
            window=window,
        )
        for first, tier in zip(range(1, 3 * len(tiers), 3), tiers, strict=True)
    ]
    next_due = ", ".join(_NEXT_DUE.format(belongs=OF_TIER[tier]) for tier in tiers)
    return _DUE.format(seen=" UNION ALL ".join(seen), next_due=f"least({next_due})")


def _page_of(sink: str, rows: Sequence[Row], behind: Position, window: int) -> DuePage:
    due: list[Due] = []
    last = behind
    for row in rows:
        if row[_TAKEN] is False:
            return DuePage(due, last, more=True)
        last = Position(row[1], row[0])
        if row[_TAKEN]:
            due.append(_due(sink, row))
    return DuePage(due, last, more=len(rows) == window)


def _rows(db: Database, sql: str, values: Mapping[str, object]) -> list[Row]:
    """Return at least one row; raises NotOwned."""
    rows = db.execute(sql, values).fetchall()
    if not rows:
        raise NotOwned
    return rows


def _due(sink: str, row: Row) -> Due:
    seq, due_ms, attempts, first_attempt_ms, replay, turn, tries, tried_ms = row[:_TAKEN]
    delivery = Delivery(
        seq=seq,
        sink=sink,
        attempts=attempts,
        first_attempt_ms=first_attempt_ms,
        replay=replay,
        turn=turn,
        tries=tries,
        tried_ms=tried_ms,
        event=event_of(row[_EVENT]),
    )
    tier: Tier = "tried" if tries else "live" if replay is None else "replay"
    position = Position(due_ms, seq)
    return Due(tier, position, delivery, is_damaged(row[_BODY], row[_DIGEST]))
