"""How a person's traces are found in a SQLite store, place by place, and removed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay.store.email_matcher import EmailMatcher
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.personal_data_places import Place, Traces

LOOK_ROWS = 500
"""Looked through per step: whoever asks beside it waits for the same reader."""

STEP_ROWS = 50
STEP_BYTES = 1 << 20
"""Per transaction, as with retention: what is removed is overwritten."""


class Found(NamedTuple):
    """Rows by key, with the bytes in them; `next` is the key to go on from, None at the end."""

    rows: list[tuple[int, int]]
    next: int | None


def last(db: sqlite3.Connection, place: Place) -> int:
    """The greatest key there is, -1 for none."""
    sql = f"SELECT coalesce(max({place.key}), -1) FROM {place.table}"
    return int(db.execute(sql).fetchone()[0])


def find(db: sqlite3.Connection, place: Place, address: EmailMatcher, *, start: int) -> Found:
    """Look through the next rows of a place, from a key on."""
    first = db.execute(
        f"SELECT min({place.key}) FROM {place.table} WHERE {place.key} >= ?", (start,)
    ).fetchone()[0]
    if first is None:
        return Found([], None)
    end = first + LOOK_ROWS
    if place.number is not None:
        theirs = db.execute(_theirs(place), (first, end, address.number))
        return Found(theirs.fetchall(), end)
    rows = db.execute(_suspects(place), {"first": first, "end": end, "mark": address.landmark})
    # Two rows of one key are removed together.
    found = {
        key: sum(len(each or "") for each in contents)
        for key, *contents in rows
        if any(address.stands_in(each) for each in contents)
    }
    return Found(list(found.items()), end)


def _theirs(place: Place) -> str:
    key, table = place.key, place.table
    return f"SELECT {key}, 0 FROM {table} WHERE {key} >= ? AND {key} < ? AND {place.number} = ?"


def _suspects(place: Place) -> str:
    """Rows that may hold the address: the landmark plainly, or what may hide it.

    SQLite looks without Python's lock, and most rows end here.
    """
    hints = " OR ".join(
        f"instr(lower(CAST({each} AS TEXT)), :mark) > 0"
        f" OR instr(CAST({each} AS BLOB), x'5c75') > 0 OR instr(CAST({each} AS BLOB), x'00') > 0"
        for each in place.columns
    )
    return f"""
SELECT {place.key}, {", ".join(place.columns)} FROM {place.table}
WHERE {place.key} >= :first AND {place.key} < :end AND (:mark IS NULL OR {hints})
"""


class Removal(NamedTuple):
    """Rows of a place that are to go in one transaction."""

    place: Place
    keys: list[int]
    now_ms: int


def removals(place: Place, found: Found, *, now_ms: int) -> Iterator[Removal]:
    """Cut what was found into transactions of few rows and bytes, of one row at least."""
    keys: list[int] = []
    size = 0
    for key, bytes_ in found.rows:
        if keys and (len(keys) >= STEP_ROWS or size + bytes_ > STEP_BYTES):
            yield Removal(place, keys, now_ms)
            keys, size = [], 0
        keys.append(key)
        size += bytes_
    if keys:
        yield Removal(place, keys, now_ms)


def look(db: sqlite3.Connection, place: Place, found: Found) -> Traces:
    """What the removal of the rows would bring about."""
    return _sum(place, [place.look(db, key) for key, _ in found.rows])


def remove(db: sqlite3.Connection, removal: Removal) -> Traces:
    """Remove the rows; what follows from that is looked up in the same transaction."""
    place = removal.place
    traces: list[Traces] = []
    for key in removal.keys:
        traces.append(place.look(db, key))
        for statement in place.removal:
            db.execute(statement, {"key": key, "now": removal.now_ms})
    return _sum(place, traces)


def _sum(place: Place, traces: Sequence[Traces]) -> Traces:
    total = Traces(rows=Counter({place.name: len(traces)}))
    for each in traces:
        total.add(each)
    return total
