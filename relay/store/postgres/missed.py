"""Events that sinks have missed: routes decide about those whose deliveries allow it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from relay.core.event import Event
from relay.core.routing import Route
from relay.store.postgres.driver import Database
from relay.store.rows import EVENT, event_of, within_bytes
from relay.store.selection import Condition, Selection

Order = Literal["ASC", "DESC"]

STEP_ROWS = 500
STEP_BYTES = 4 << 20
"""Events whose bodies are read at once."""

# The place behind which the next step begins is a condition of its own, for the index.
_CANDIDATES = """
SELECT e.seq, octet_length(e.body), missing.sinks FROM relay.events e, LATERAL (
    SELECT array_agg(s.name) AS sinks FROM unnest(%b::text[]) AS s (name) WHERE NOT EXISTS (
        SELECT 1 FROM relay.deliveries d
        WHERE d.event = e.seq AND d.sink = s.name AND d.status IN ('delivered', 'pending')
    )
) AS missing
WHERE e.body IS NOT NULL AND missing.sinks IS NOT NULL AND {fits} AND e.seq {beyond} %s
ORDER BY e.seq {order} LIMIT %s
"""
_EVENTS = f"SELECT e.seq, {EVENT} FROM relay.events e WHERE e.seq = ANY(%b::bigint[])"
_BEYOND: dict[Order, tuple[str, int]] = {"ASC": (">", 0), "DESC": ("<", (1 << 63) - 1)}


def missed(
    db: Database,
    selection: Selection,
    routes: Sequence[Route],
    fits: Condition,
    *,
    order: Order = "DESC",
    limit: int | None = None,
) -> Condition:
    """Return the condition on `events e` to be one of the first that fit and were missed."""
    by_sink = {each.sink: each for each in routes if selection.sink in (None, each.sink)}
    seqs = [*islice(_missed(db, by_sink, fits, order), limit)] if by_sink else []
    return "e.seq = ANY(%b::bigint[])", [seqs]


def _missed(db: Database, routes: dict[str, Route], fits: Condition, order: Order) -> Iterator[int]:
    where, values = fits
    beyond, place = _BEYOND[order]
    sql = _CANDIDATES.format(fits=where, beyond=beyond, order=order)
    while rows := db.execute(sql, ([*routes], *values, place, STEP_ROWS)).fetchall():
        step = list(within_bytes(rows, STEP_BYTES, lambda row: int(row[1])))
        events = _events(db, [row[0] for row in step])
        for seq, _, sinks in step:
            # Retention may have removed it since.
            event = events.get(seq)
            if event is not None and any(_takes(routes[sink], event) for sink in sinks):
                yield seq
        place = step[-1][0]


def _events(db: Database, seqs: list[int]) -> dict[int, Event]:
    rows = db.execute(_EVENTS, (seqs,)).fetchall()
    return {seq: event_of(event) for seq, *event in rows if event[5] is not None}


def _takes(route: Route, event: Event) -> bool:
    return route.evaluate(event).outcome == "takes"
