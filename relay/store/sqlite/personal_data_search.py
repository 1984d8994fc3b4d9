"""Search for a person's data in a SQLite store, place by place, and its removal."""

from collections import Counter
from collections.abc import Sequence

from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data_traces import Matches, Traces, matches
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.personal_data_places import Place


def last(db: sqlite3.Connection, place: Place) -> int:
    """Return the greatest key, -1 if there is none."""
    sql = f"SELECT coalesce(max({place.key}), -1) FROM {place.table}"
    return int(db.execute(sql).fetchone()[0])


def find(
    db: sqlite3.Connection, place: Place, address: EmailMatcher, *, start: int, rows: int
) -> Matches:
    """Search the next rows of a place, from a key on."""
    first = db.execute(
        f"SELECT min({place.key}) FROM {place.table} WHERE {place.key} >= ?", (start,)
    ).fetchone()[0]
    if first is None:
        return Matches([], None)
    end = first + rows
    if place.number is not None:
        rows_of_person = db.execute(_by_number(place), (first, end, address.number))
        return Matches(rows_of_person.fetchall(), end)
    candidates = db.execute(
        _candidates(place), {"first": first, "end": end, "mark": address.longest_word}
    )
    return matches(candidates, address, end)


def _by_number(place: Place) -> str:
    key, table = place.key, place.table
    return f"SELECT {key}, 0 FROM {table} WHERE {key} >= ? AND {key} < ? AND {place.number} = ?"


def _candidates(place: Place) -> str:
    """Select rows that may contain the address: with its longest word, or escapes that may hide it.

    SQLite searches without Python's lock, and rules most rows out.
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


def preview(db: sqlite3.Connection, place: Place, keys: Sequence[int]) -> Traces:
    """Return the effects that the removal of the rows would have."""
    return _sum(place, [place.find_related(db, key) for key in keys])


def remove(db: sqlite3.Connection, place: Place, keys: Sequence[int], now_ms: int) -> Traces:
    """Remove the rows, and determine the effects in the same transaction."""
    traces: list[Traces] = []
    place.erase_first(db, keys)
    for key in keys:
        traces.append(place.find_related(db, key))
        for statement in place.removal:
            db.execute(statement, {"key": key, "now": now_ms})
    return _sum(place, traces)


def _sum(place: Place, traces: Sequence[Traces]) -> Traces:
    total = Traces(rows=Counter({place.name: len(traces)}))
    for part in traces:
        total.add(part)
    return total
