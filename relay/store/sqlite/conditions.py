"""Selections in SQL: one set of conditions for lists, counts, replays and discards."""

from collections.abc import Sequence
from typing import Any

import orjson

from relay.core.routing import Route
from relay.store.selection import Selection
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.rows import EVENT, event_of

Condition = tuple[str, list[Any]]
"""An SQL expression and its values; a None among them leaves it out."""

ALL = "1"
"""The condition that everything fits."""

# SQLite accepts less nesting than orjson, and such a body must not fail a search.
_BODY = "iif(json_valid(CAST(e.body AS TEXT)), CAST(e.body AS TEXT), NULL)"
_VIDEO = (
    f"coalesce(json_extract({_BODY}, '$.data.video.id'),"
    f" iif(e.kind LIKE 'video.%', json_extract({_BODY}, '$.data.id'), NULL))"
)
_EMAIL = (
    f"(lower(json_extract({_BODY}, '$.data.email')) = lower(?)"
    f" OR lower(json_extract({_BODY}, '$.data.viewer.email')) = lower(?))"
)
# `iif` fixes the order: SQLite would evaluate the subquery last, and a route takes longer.
_MISSED = f"""
e.body IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_each(?) AS s WHERE iif(
        EXISTS (
            SELECT 1 FROM deliveries d
            WHERE d.event = e.seq AND d.sink = s.value AND d.status IN ('delivered', 'pending')
        ),
        0, takes(s.value, {EVENT})
    )
)
"""


def fits(
    db: sqlite3.Connection, selection: Selection, routes: Sequence[Route], *more: Condition
) -> Condition:
    """Return the condition on `events e`; `routes` decide which events a sink has missed."""
    if selection.outcome == "missed":
        return all_of(*of_event(selection), _missed(db, selection, routes), *more)
    if not selection.names_deliveries:
        return all_of(*of_event(selection), *more)
    sql, values = all_of(*of_delivery(selection))
    exists = f"EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.seq AND {sql})"
    return all_of(*of_event(selection), (exists, values), *more)


def all_of(*conditions: Condition) -> Condition:
    """Join the conditions that have all of their values."""
    used = [condition for condition in conditions if None not in condition[1]]
    sql = " AND ".join(sql for sql, _ in used) or ALL
    return sql, [value for _, values in used for value in values]


def of_event(selection: Selection) -> list[Condition]:
    """Return the conditions on `events e` that do not concern deliveries."""
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
    """Return the conditions on existing `deliveries d`."""
    return [
        ("d.sink = ?", [selection.sink]),
        ("d.status = ?", [selection.status]),
        ("instr(d.reason, ?) > 0", [selection.reason]),
    ]


def _missed(db: sqlite3.Connection, selection: Selection, routes: Sequence[Route]) -> Condition:
    by_sink = {each.sink: each for each in routes if selection.sink in (None, each.sink)}

    def takes(sink: str, *event: Any) -> bool:
        return by_sink[sink].evaluate(event_of(event)).outcome == "takes"

    db.create_function("takes", 8, takes)
    return _MISSED, [orjson.dumps(list(by_sink)).decode()]
