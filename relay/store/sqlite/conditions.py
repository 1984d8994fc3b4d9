"""Conditions of selections that SQLite has in its own way."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from relay.core import foreign_json
from relay.core.routing import Route
from relay.store.audience.reads import LAST_COUNTED
from relay.store.rows import EVENT, event_of
from relay.store.selection import Conditions, Order, Selection
from relay.store.sql import Condition, all_of
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import WITH_ID

WITH_PREFIX = "id BETWEEN :id_prefix AND :id_prefix || char(0x10ffff)"
"""Whether an id begins with a text."""
UNCOUNTED = f"seq > {LAST_COUNTED} AND person_of(kind, body) = :person"
"""Whether one of `events` is a person's and not counted yet."""

_WILDCARD = re.compile("[%_!]")
_OF_PERSON = f"""
e.seq IN (
    SELECT event FROM audience WHERE person = :person
    UNION ALL SELECT seq FROM events WHERE {UNCOUNTED}
)
"""
_TEXT = "CAST(e.body AS TEXT)"
# SQLite accepts less nesting than orjson, and such a body must not fail a search.
_BODY = (
    f"iif(json_valid({_TEXT}), iif({_TEXT} LIKE '%\\ud%', without_halves(e.body), {_TEXT}), NULL)"
)
_VIDEO = f"""
coalesce(
    json_extract({_BODY}, '$.data.video.id'),
    iif(e.kind LIKE 'video.%', json_extract({_BODY}, '$.data.id'), NULL)
) = :video
"""
_EMAIL = f"""
:email IN (
    lower(json_extract({_BODY}, '$.data.email')),
    lower(json_extract({_BODY}, '$.data.viewer.email'))
)
"""
# `iif` fixes the order: SQLite would evaluate the subquery last, and a route takes longer.
_MISSED = f"""
e.body IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_each(:sinks) AS s WHERE iif(
        EXISTS (
            SELECT 1 FROM deliveries d
            WHERE d.event = e.seq AND d.sink = s.value AND d.status IN ('delivered', 'pending')
        ),
        0, takes(s.value, {EVENT})
    )
)
"""


class SqliteConditions(Conditions):
    """Bodies are read by functions of SQLite, routes by one of the relay's."""

    escapes = f"{_TEXT} LIKE '%\\%'"
    parsed: ClassVar = {"video": _VIDEO, "email": _EMAIL}

    def contains(self, name: str, text: str) -> Condition:
        # Four times as fast as instr and lower. Not on the BLOB itself, which LIKE may be built to
        # ignore.
        pattern = "%" + _WILDCARD.sub(r"!\g<0>", text) + "%"
        return Condition(f"{_TEXT} LIKE :{name} ESCAPE '!'", {name: pattern})

    def own(self, _: sqlite3.Connection, selection: Selection) -> Iterator[Condition]:
        yield Condition(f"e.seq IN ({WITH_ID})", {"id": selection.id})
        yield Condition(f"e.{WITH_PREFIX}", {"id_prefix": selection.id_prefix})
        yield Condition("e.kind GLOB :kind", {"kind": selection.kind})
        yield Condition(_OF_PERSON, {"person": selection.person_number})

    def missed(
        self,
        db: sqlite3.Connection,
        routes: Mapping[str, Route],
        fits: Condition,
        _: Order,
        __: int | None,
    ) -> Condition:
        def takes(sink: str, *event: Any) -> bool:
            return routes[sink].evaluate(event_of(event)).outcome == "takes"

        db.create_function("takes", 9, takes)
        return all_of(fits, Condition(_MISSED, {"sinks": orjson.dumps([*routes]).decode()}))


def define(db: sqlite3.Connection) -> None:
    """Define the function `without_halves`, which the conditions use."""
    db.create_function("without_halves", 1, _without_halves, deterministic=True)


def _without_halves(body: bytes) -> str:
    return foreign_json.without_halves(body).decode(errors="replace")
