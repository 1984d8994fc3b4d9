"""Queries for due deliveries: how one look finds them, and what it says of the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.core.delivery import Delivery
from relay.store import Tier
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.fences import READ_GUARD, Fence, NotOwned
from relay.store.postgres.leases import Position
from relay.store.rows import event_of, is_damaged
from relay.store.tiers import OF_TIER

LEASE_BYTES_MAX = 4 << 20
"""Total size of bodies, in bytes, at which a lease ends."""

_WINDOWS = (64, 256, 1024, 4096)
"""Deliveries that one look passes over at most; few numbers, because each is a plan of its own."""

_COLUMNS = "event, due_at, attempts, first_attempt_at, replay, turn, tries, tried_at"
_SEEN = {
    tier: f"""
SELECT {_COLUMNS} FROM relay.deliveries
WHERE sink = %(sink)s AND status = 'pending' AND {belongs}
    AND due_at <= %(now)s AND (due_at, event) > (%(behind_due)s, %(behind_event)s)
ORDER BY due_at, event LIMIT {{window}}
"""
    for tier, belongs in OF_TIER.items()
}
# The first of each turn that has one left: its predecessor ended since the last look.
_FIRSTS = f"""
SELECT x.* FROM unnest(%(turns)b::bigint[]) AS ended (turn), LATERAL (
    SELECT {_COLUMNS} FROM relay.deliveries
    WHERE sink = %(sink)s AND status = 'pending' AND turn = ended.turn
    ORDER BY event LIMIT 1
) AS x
WHERE x.due_at <= %(now)s
"""
# One statement, so that all of it is seen as of one moment. It has no join that a wrong guess at
# the number of rows could repeat, and reads no body that is left out. It returns no row if another
# relay may own the sink, and one without an event if nothing was seen.
_LOOK = f"""
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
    WINDOW in_order AS (ORDER BY j.due_at, j.event ROWS UNBOUNDED PRECEDING)
),
chosen AS (
    SELECT *, CASE
        WHEN seq IS NOT NULL THEN place <= %(limit)s AND bytes_before < {LEASE_BYTES_MAX}
    END AS taken
    FROM sized
)
SELECT {_COLUMNS}, taken, source, id, kind, created_at, received_at,
    CASE WHEN taken THEN body END, headers, reconstructed, digest
FROM owned LEFT JOIN chosen ON true ORDER BY due_at, event
"""
_NEXT_DUE = {
    tier: f"""
SELECT min(due_at) FROM relay.deliveries
WHERE sink = %s AND status = 'pending' AND {belongs} AND due_at > %s
"""
    for tier, belongs in OF_TIER.items()
}
_TURN, _TAKEN, _EVENT, _BODY, _DIGEST = 5, 8, slice(9, 17), 14, 17
"""Columns of `_LOOK`."""


class Due(NamedTuple):
    """A delivery that is due."""

    tier: Tier
    position: Position
    delivery: Delivery
    is_damaged: bool


class Look(NamedTuple):
    """Some due deliveries."""

    found: list[Due]
    last: Position
    """The last delivery that was looked at."""
    more: bool
    """Whether some behind `last` may be due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A look for due deliveries of one sink that are not leased.

    Of those with the same turn only the first is due, and none of `busy` turns.
    """

    sink: str
    fence: Fence | None
    now_ms: int
    limit: int
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
            "limit": self.limit,
            "leased": self.leased,
            "busy": self.busy,
        }


def look(db: Database, asked: Question, tier: Tier, behind: Position) -> Look:
    """Return the longest due deliveries of a tier behind a position; raises NotOwned."""
    wanted = asked.limit + len(asked.leased)
    window = next((size for size in _WINDOWS if size >= wanted), _WINDOWS[-1])
    values = {"behind_due": behind.due_ms, "behind_event": behind.event, **asked.values()}
    sql = _LOOK.format(seen=_SEEN[tier].format(window=window))
    rows = _rows(db, sql, values)
    found: list[Due] = []
    last = behind
    for row in rows:
        if row[_TAKEN] is False:
            return Look(found, last, more=True)
        last = Position(row[1], row[0])
        if row[_TAKEN]:
            found.append(_due(asked.sink, row))
    return Look(found, last, more=len(rows) == window)


def firsts(db: Database, asked: Question, turns: Sequence[int]) -> tuple[list[Due], frozenset[int]]:
    """Return the first due delivery of each turn, and the turns of those beyond a limit.

    Raises NotOwned.
    """
    values = {"turns": turns, **asked.values()}
    rows = _rows(db, _LOOK.format(seen=_FIRSTS), values)
    found = [_due(asked.sink, row) for row in rows if row[_TAKEN]]
    return found, frozenset(row[_TURN] for row in rows if row[_TAKEN] is False)


def next_due(db: Database, asked: Question, tier: Tier) -> int | None:
    """Return the earliest due time of a tier after now."""
    due_ms: int | None = db.execute(_NEXT_DUE[tier], (asked.sink, asked.now_ms)).fetchall()[0][0]
    return due_ms


def _rows(db: Database, sql: str, values: Mapping[str, object]) -> list[Row]:
    rows = db.execute(sql, values).fetchall()
    if not rows:
        raise NotOwned
    return [row for row in rows if row[0] is not None]


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
