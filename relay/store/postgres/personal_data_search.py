"""Search for a person's data in PostgreSQL, place by place, and its removal."""

from collections import Counter
from collections.abc import Sequence

from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data_traces import Matches, Traces, matches
from relay.store.postgres.driver import Database
from relay.store.postgres.personal_data_places import Place

_BYTES = frozenset({"body", "headers"})
"""Columns that hold bytes; all others hold text."""


def last(db: Database, place: Place) -> int:
    """Return the greatest key, -1 if there is none."""
    sql = f"SELECT coalesce(max({place.key}), -1) FROM relay.{place.table}"
    return int(db.execute(sql).fetchall()[0][0])


def find(db: Database, place: Place, address: EmailMatcher, *, start: int, rows: int) -> Matches:
    """Search the next rows of a place, from a key on."""
    key, table = place.key, f"relay.{place.table}"
    ((first,),) = db.execute(f"SELECT min({key}) FROM {table} WHERE {key} >= %s", (start,))
    if first is None:
        return Matches([], None)
    end = first + rows
    if place.number is not None:
        of_person = f"SELECT {key}, 0 FROM {table} WHERE {key} >= %s AND {key} < %s AND person = %s"
        cursor = db.execute(of_person, (first, end, address.number))
        return Matches(cursor.fetchall(), end)
    values = {"first": first, "end": end, "mark": address.longest_word}
    return matches(db.execute(_candidates(place), values), address, end)


def _candidates(place: Place) -> str:
    """Select rows with the longest word of the address, or with escapes that may hide it."""
    hints = " OR ".join(
        _hints_in_bytes(each) if each in _BYTES else _hints_in_text(each) for each in place.columns
    )
    return f"""
SELECT {place.key}, {", ".join(place.columns)} FROM relay.{place.table}
WHERE {place.key} >= %(first)s AND {place.key} < %(end)s AND (%(mark)s::text IS NULL OR {hints})
"""


def _hints_in_bytes(column: str) -> str:
    # Turns bytes that are not ASCII into octal digits, so that any body is valid text.
    text = f"""lower(encode({column}, 'escape') COLLATE "C")"""
    escapes = (f"position(E'\\\\x{each}'::bytea IN {column}) > 0" for each in ("5c75", "00"))
    return " OR ".join((f"position(%(mark)s IN {text}) > 0", *escapes))


def _hints_in_text(column: str) -> str:
    return (
        f"""position(%(mark)s IN lower({column} COLLATE "C")) > 0"""
        f""" OR position(E'\\\\u' IN {column}) > 0"""
    )


def preview(db: Database, place: Place, keys: Sequence[int]) -> Traces:
    """Return the effects that the removal of the rows would have."""
    return _counted(place, keys, place.find_related(db, keys, None))


def remove(db: Database, place: Place, keys: Sequence[int], now_ms: int) -> Traces:
    """Remove the rows, and determine the effects in the same transaction."""
    traces = place.find_related(db, keys, now_ms)
    place.erase_first(db, keys)
    for statement in place.removal:
        db.execute(statement, {"keys": list(keys), "now": now_ms})
    return _counted(place, keys, traces)


def _counted(place: Place, keys: Sequence[int], traces: Traces) -> Traces:
    traces.add(Traces(rows=Counter({place.name: len(keys)})))
    return traces
