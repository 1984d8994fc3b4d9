"""Selections in SQL: one set of conditions for lists, counts, replays and discards."""

import re
from collections.abc import Sequence
from typing import Any

import orjson

from relay.core import foreign_json
from relay.core.routing import Route
from relay.store.rows import EVENT, event_of
from relay.store.selection import Condition, Selection, all_of, word_forms
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import WITH_ID

COUNTED_TO = "coalesce((SELECT value FROM state WHERE name = 'audience'), 0)"
"""The last event that the audience has counted."""

# Four times as fast as instr and lower. Not on the BLOB itself, which LIKE may be built to ignore.
_CONTAINS = "CAST(e.body AS TEXT) LIKE ? ESCAPE '!'"
_WILDCARD = re.compile("[%_!]")
WITH_PREFIX = "id BETWEEN ? AND ? || char(0x10ffff)"
"""Whether an id begins with a text."""
UNCOUNTED = f"seq > {COUNTED_TO} AND person_of(kind, body) = ?"
"""Whether one of `events` is a person's and not counted yet."""

_OF_PERSON = f"""
e.seq IN (
    SELECT event FROM audience WHERE person = ? UNION ALL SELECT seq FROM events WHERE {UNCOUNTED}
)
"""
_TEXT = "CAST(e.body AS TEXT)"
# SQLite accepts less nesting than orjson, and such a body must not fail a search.
_BODY = (
    f"iif(json_valid({_TEXT}), iif({_TEXT} LIKE '%\\ud%', without_halves(e.body), {_TEXT}), NULL)"
)
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


def of_event(selection: Selection) -> list[Condition]:
    """Return the conditions on `events e` that do not concern deliveries."""
    return [
        (f"e.seq IN ({WITH_ID})", [selection.id, selection.id]),
        (f"e.{WITH_PREFIX}", [selection.id_prefix, selection.id_prefix]),
        ("e.source = ?", [selection.source]),
        ("e.kind GLOB ?", [selection.kind]),
        ("e.received_at >= ?", [selection.since_ms]),
        ("e.received_at < ?", [selection.until_ms]),
        ("e.seq < ?", [selection.before]),
        *_parsed(f"{_VIDEO} = ?", [selection.video]),
        *_parsed(_EMAIL, [selection.email, selection.email]),
        (_OF_PERSON, [selection.person_number, selection.person_number]),
        *_words(selection.words),
    ]


def define(db: sqlite3.Connection) -> None:
    """Define the function `without_halves`, which the conditions use."""
    db.create_function("without_halves", 1, _without_halves, deterministic=True)


def _without_halves(body: bytes) -> str:
    return foreign_json.without_halves(body).decode(errors="replace")


def _parsed(sql: str, values: list[str | None]) -> list[Condition]:
    """Parse a body only if it contains the value, or an escape that may hide it."""
    value = values[0]
    if value is None:
        return []
    hint = f"({_CONTAINS} OR CAST(e.body AS TEXT) LIKE '%\\%')"
    return [(f"iif({hint}, {sql}, 0)", [_pattern(value), *values])]


def _words(text: str | None) -> list[Condition]:
    """Return one condition per word."""
    if text is None:
        return []
    words = word_forms(text)
    if not words:
        return [("FALSE", [])]
    return [("e.body IS NOT NULL", []), *map(_word, words)]


def _word(forms: Sequence[str]) -> Condition:
    return f"({' OR '.join([_CONTAINS] * len(forms))})", [_pattern(form) for form in forms]


def _pattern(text: str) -> str:
    """Return the operand of `_CONTAINS`."""
    return "%" + _WILDCARD.sub(r"!\g<0>", text) + "%"


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

    db.create_function("takes", 9, takes)
    return _MISSED, [orjson.dumps(list(by_sink)).decode()]
