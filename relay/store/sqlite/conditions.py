"""Selections in SQL: one set of conditions for lists, counts, replays and discards."""

from collections.abc import Sequence
from typing import Any

import orjson

from relay.core.event import Event
from relay.core.routing import Route
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3

Condition = tuple[str, list[Any]]
"""An SQL expression and its values; without values it always counts."""

# SQLite reads less deeply than orjson, and one such body must not fail a search.
_BODY = "iif(json_valid(CAST(e.body AS TEXT)), CAST(e.body AS TEXT), NULL)"
_VIDEO = (
    f"coalesce(json_extract({_BODY}, '$.data.video.id'),"
    f" iif(e.kind LIKE 'video.%', json_extract({_BODY}, '$.data.id'), NULL))"
)
_EMAIL = (
    f"(lower(json_extract({_BODY}, '$.data.email')) = lower(?)"
    f" OR lower(json_extract({_BODY}, '$.data.viewer.email')) = lower(?))"
)
# With `iif`, because SQLite asks for what a subquery finds last, and a route takes longer.
_MISSED = """
e.body IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_each(?) AS s WHERE iif(
        EXISTS (
            SELECT 1 FROM deliveries d
            WHERE d.event = e.seq AND d.sink = s.value AND d.status IN ('delivered', 'pending')
        ),
        0, takes(s.value, e.source, e.id, e.kind, e.received_at, e.body)
    )
)
"""


def fits(
    db: sqlite3.Connection, selection: Selection, routes: Sequence[Route], *more: Condition
) -> Condition:
    """What `events e` have to fulfil; what a sink missed is decided by its route."""
    if selection.outcome == "missed":
        return all_of(*of_event(selection), _missed(db, selection, routes), *more)
    if not selection.names_deliveries:
        return all_of(*of_event(selection), *more)
    meant, values = all_of(*of_delivery(selection))
    one = f"EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.seq AND {meant})"
    return all_of(*of_event(selection), (one, values), *more)


def all_of(*conditions: Condition) -> Condition:
    """What holds where all hold that have values."""
    given = [each for each in conditions if None not in each[1]]
    return " AND ".join(sql for sql, _ in given) or "1", [v for _, each in given for v in each]


def of_event(selection: Selection) -> list[Condition]:
    """What `events e` have to fulfil, whatever became of them."""
    return [
        ("e.id = ?", [selection.id]),
        ("e.source = ?", [selection.source]),
        ("e.kind GLOB ?", [selection.kind]),
        ("e.received_at >= ?", [selection.since_ms]),
        ("e.received_at < ?", [selection.until_ms]),
        ("e.seq < ?", [selection.before]),
        (f"e.body IS NOT NULL AND {_VIDEO} = ?", [selection.video]),
        (f"e.body IS NOT NULL AND {_EMAIL}", [selection.email, selection.email]),
    ]


def of_delivery(selection: Selection) -> list[Condition]:
    """What `deliveries d` have to fulfil, as far as they were made."""
    return [
        ("d.sink = ?", [selection.sink]),
        ("d.status = ?", [selection.status]),
        ("instr(d.reason, ?) > 0", [selection.reason]),
    ]


def _missed(db: sqlite3.Connection, selection: Selection, routes: Sequence[Route]) -> Condition:
    asked = {each.sink: each for each in routes if selection.sink in (None, each.sink)}

    def takes(sink: str, *row: Any) -> bool:
        source, event_id, kind, received_ms, body = row
        event = Event(
            source=source,
            id=event_id,
            kind=kind,
            created_at=None,
            received_ms=received_ms,
            body=body,
        )
        return asked[sink].evaluate(event).outcome == "takes"

    db.create_function("takes", 6, takes)
    return _MISSED, [orjson.dumps(list(asked)).decode()]
